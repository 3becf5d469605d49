/**
 * Reads messages of the link, by the schemas. A peer may be newer or older than this code: unknown fields are ignored,
 * unknown message types and unreadable messages are returned as such, and unknown or unreadable items are removed from
 * their message, so that they affect neither the other items nor the link.
 */
import type { TSchema } from 'typebox';
import { Compile, type Validator } from 'typebox/compile';
import { ItemHeader, type UnsupportedItem } from './envelope.ts';
import {
  CONTROL_MESSAGES,
  type ControlMessage,
  KIND_NAMES,
  KINDS,
  RUNNER_MESSAGES,
  type RunnerMessage,
} from './messages.ts';
import { CpuReading, UsagePiece } from './usage.ts';

/** The peer does not speak this protocol at all: it sent something other than a JSON object with a `type`. The link is closed. */
export class FramingError extends Error {
  override name = 'FramingError';
}

export type Reading<M> =
  | {
      outcome: 'message';
      message: M;
      /** Removed items that must be answered. */
      unsupported: UnsupportedItem[];
      /** Number of removed items that cannot be answered, because not even their id can be read. */
      dropped: number;
    }
  | { outcome: 'unknown-type'; type: string }
  | { outcome: 'unreadable'; type: string; error: string };

interface Direction {
  messages: Record<string, Validator>;
  kinds: Record<string, Validator>;
}

const compile = <K extends string>(schemas: Record<K, TSchema>): Record<string, Validator> =>
  Object.fromEntries(Object.entries<TSchema>(schemas).map(([name, schema]) => [name, Compile(schema)]));
const ofKinds = (part: 'assignment' | 'report'): Record<string, Validator> =>
  Object.fromEntries(KIND_NAMES.map((kind) => [kind, Compile(KINDS[kind][part] as TSchema)]));

const FROM_RUNNER: Direction = {
  messages: compile(RUNNER_MESSAGES),
  kinds: ofKinds('report'),
};
const FROM_CONTROL: Direction = {
  messages: compile(CONTROL_MESSAGES),
  kinds: ofKinds('assignment'),
};
const header = Compile(ItemHeader);
/** Lists of messages whose invalid entries are dropped: the others count. */
const ENTRIES: Record<string, { list: string; entry: Validator }> = {
  usage: { list: 'readings', entry: Compile(CpuReading) },
  usage_history: { list: 'pieces', entry: Compile(UsagePiece) },
};

/** @param kinds the kinds that this side reconciles @throws FramingError */
export function readRunnerMessage(
  data: string,
  kinds: readonly string[] = KIND_NAMES,
): Reading<RunnerMessage> {
  return read(data, FROM_RUNNER, kinds) as Reading<RunnerMessage>;
}

/** @param kinds the kinds that this side reconciles @throws FramingError */
export function readControlMessage(
  data: string,
  kinds: readonly string[] = KIND_NAMES,
): Reading<ControlMessage> {
  return read(data, FROM_CONTROL, kinds) as Reading<ControlMessage>;
}

function read(data: string, direction: Direction, kinds: readonly string[]): Reading<unknown> {
  const value = parse(data);
  const { type } = value;
  if (!Object.hasOwn(direction.messages, type)) return { outcome: 'unknown-type', type: type.slice(0, 64) };
  let dropped = 0;
  const entries = Object.hasOwn(ENTRIES, type) ? ENTRIES[type] : undefined;
  const given = entries === undefined ? undefined : value[entries.list];
  if (entries !== undefined && Array.isArray(given)) {
    const readable = given.filter((one) => entries.entry.Check(one));
    dropped = given.length - readable.length;
    value[entries.list] = readable;
  }
  const error = whyNot(direction.messages[type], value);
  if (error !== undefined) return { outcome: 'unreadable', type, error };
  const { items } = value;
  if (!Array.isArray(items)) return { outcome: 'message', message: value, unsupported: [], dropped };
  const readable: unknown[] = [];
  const unsupported: UnsupportedItem[] = [];
  for (const item of items as unknown[]) {
    if (!header.Check(item)) {
      dropped++;
      continue;
    }
    const { kind, id, generation } = item;
    const known = kinds.includes(kind) && Object.hasOwn(direction.kinds, kind);
    const why = known ? whyNot(direction.kinds[kind], item) : `the kind ${kind} is not known`;
    if (why === undefined) readable.push(item);
    else unsupported.push({ kind, id, generation, error: why });
  }
  return { outcome: 'message', message: { ...value, items: readable }, unsupported, dropped };
}

function parse(data: string): Record<string, unknown> & { type: string } {
  let value: unknown;
  try {
    value = JSON.parse(data);
  } catch {
    // The parser's own message would quote the data, which contains environments and credentials.
    throw new FramingError('a message that is not JSON');
  }
  const type = (value as { type?: unknown } | null)?.type;
  if (typeof type !== 'string') throw new FramingError('a message without a type');
  return value as Record<string, unknown> & { type: string };
}

/** Names the place and the expected value, never the actual one: values are environments and credentials. */
function whyNot(validator: Validator | undefined, value: unknown): string | undefined {
  if (validator === undefined || validator.Check(value)) return undefined;
  const errors = validator.Errors(value);
  const error = errors.find(({ instancePath }) => instancePath !== '') ?? errors[0];
  return error === undefined ? 'is not valid' : `${error.instancePath} ${error.message}`.trim().slice(0, 300);
}
