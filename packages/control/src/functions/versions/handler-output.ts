/**
 * What the handlers of a function print, of all of its instances: read from their hosts, each line with the version and the
 * instance that wrote it. Hosts keep the output of an instance for a while after its end.
 */
import { once } from 'node:events';
import { PassThrough, type Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { queryAll, statement, type Database } from '@releap/database';
import type { HostClient } from '../../fleet/runners/host-client.ts';

/** Instances whose output one response has: the newest. Hosts bound how many readers follow. */
const INSTANCES_MAX = 20;
const FOLLOWED_MAX = 16;
/** How often new instances are looked for, in milliseconds. */
const LOOK_MS = 500;
/** A longer line is cut into several, in bytes. */
const LINE_MAX_BYTES = 64 * 1024;

interface Instance {
  id: string;
  version: number;
  /** Whether its handler may still print. */
  live: boolean;
  runner_id: string | null;
  data_url: string | null;
}

/** Newest first. $1 function, $2 version or null, $3 limit */
const INSTANCES = statement<Instance>(
  'function-output-instances',
  `select s.id, v.version, s.status not in ('deleted', 'failed', 'lost', 'stopped', 'paused') as live, s.runner_id, r.data_url
     from function_instances i join sandboxes s on s.id = i.sandbox_id join function_versions v on v.id = i.version_id
     left join runners r on r.id = s.runner_id
    where i.function_id = $1 and ($2::integer is null or v.version = $2)
    order by i.created_at desc, s.id desc limit $3`,
);

interface Context {
  database: Database;
  hosts: HostClient;
}

export interface HandlerOutput {
  functionId: string;
  /** Null: all. */
  version: number | null;
  /** Until the client disconnects, with instances that start meanwhile. */
  follow: boolean;
  signal: AbortSignal;
}

/** Text, which begins with the oldest instance. */
export function readHandlerOutput(context: Context, request: HandlerOutput): Readable {
  const out = new PassThrough();
  const run = request.follow ? followAll(context, request, out) : readAll(context, request, out);
  run.then(
    () => out.end(),
    (error: unknown) => out.destroy(error instanceof Error ? error : new Error(String(error))),
  );
  return out;
}

async function readAll(context: Context, request: HandlerOutput, out: PassThrough): Promise<void> {
  for (const instance of (await instancesOf(context, request)).toReversed()) {
    await copy(context, request, instance, out, false);
  }
}

async function followAll(context: Context, request: HandlerOutput, out: PassThrough): Promise<void> {
  const { signal } = request;
  /** Bytes that were copied of each. */
  const copied = new Map<string, number>();
  const followed = new Map<string, Promise<void>>();
  const done = new Set<string>();
  let failure: unknown;
  for (;;) {
    const instances = (await instancesOf(context, request)).toReversed();
    for (const instance of instances.filter(({ id }) => !done.has(id) && !followed.has(id))) {
      if (instance.runner_id === null || followed.size >= FOLLOWED_MAX) continue;
      const { id, live } = instance;
      if (!live) done.add(id);
      const reading = copy(context, request, instance, out, live, copied).then(
        () => void followed.delete(id),
        (error: unknown) => {
          failure ??= error;
        },
      );
      followed.set(id, reading);
      // What has ended comes first, in the order of the instances.
      if (!live) await reading;
    }
    if (failure !== undefined) throw failure;
    // The sets stay as small as the list.
    const known = new Set(instances.map(({ id }) => id));
    for (const id of done) if (!known.has(id)) done.delete(id);
    for (const id of copied.keys()) if (!known.has(id)) copied.delete(id);
    await sleep(LOOK_MS, undefined, { signal });
  }
}

function instancesOf({ database }: Context, { functionId, version }: HandlerOutput): Promise<Instance[]> {
  return queryAll(database.pool, INSTANCES, [functionId, version, INSTANCES_MAX]);
}

/** Copies the output of one instance, line by line. Lines that the host no longer has are left out. */
async function copy(
  { hosts }: Context,
  { signal }: HandlerOutput,
  { id, version, runner_id: runnerId, data_url: dataUrl }: Instance,
  out: PassThrough,
  follow: boolean,
  copied = new Map<string, number>(),
): Promise<void> {
  if (runnerId === null || dataUrl === null) return;
  const prefix = Buffer.from(`[v${version} ${id.slice(0, 8)}] `);
  const write = async (line: Buffer): Promise<void> => {
    if (!out.write(Buffer.concat([prefix, line, NEW_LINE]))) await once(out, 'drain', { signal });
  };
  let log: Readable | undefined;
  try {
    log = await hosts.log({
      runnerId,
      dataUrl,
      path: `/vms/${id}/logs/entrypoint`,
      subject: id,
      shown: `instance ${id}`,
      follow,
      signal,
    });
  } catch (error) {
    if (signal.aborted) throw error;
    // When followed, the host is asked again.
    if (!follow) await write(Buffer.from('(its host did not answer)'));
    return;
  }
  if (log === undefined) return;
  // The host sends the log from its beginning each time.
  let skip = copied.get(id) ?? 0;
  let partial: Buffer = Buffer.alloc(0);
  try {
    for await (const chunk of log as AsyncIterable<Buffer>) {
      const fresh = chunk.subarray(Math.min(skip, chunk.length));
      skip -= chunk.length - fresh.length;
      let rest = Buffer.concat([partial, fresh]);
      for (let end = lineEnd(rest); end !== undefined; end = lineEnd(rest)) {
        await write(rest.subarray(0, end.line));
        copied.set(id, (copied.get(id) ?? 0) + end.next);
        rest = rest.subarray(end.next);
      }
      partial = rest;
    }
  } catch (error) {
    if (signal.aborted) throw error;
    // The connection to the host was lost: an incomplete line is read again.
    if (follow) return;
  }
  if (partial.length === 0) return;
  await write(partial);
  copied.set(id, (copied.get(id) ?? 0) + partial.length);
}

const NEW_LINE = Buffer.from('\n');

/** Where the first line ends and the next begins; undefined when there is none yet. */
function lineEnd(text: Buffer): { line: number; next: number } | undefined {
  const at = text.indexOf(NEW_LINE);
  if (at >= 0 && at <= LINE_MAX_BYTES) return { line: at, next: at + 1 };
  return text.length > LINE_MAX_BYTES ? { line: LINE_MAX_BYTES, next: LINE_MAX_BYTES } : undefined;
}
