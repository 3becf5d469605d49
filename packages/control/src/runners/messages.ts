/** Reads what a runner says, strictly. Runners are ours, and still nothing unbounded or ill-formed gets further. */
import {
  LINK_MESSAGE_MAX_BYTES,
  PortMapRecord,
  USAGE_READINGS_MAX,
  type RunnerMessage,
} from '@releap/contract';
import { Type } from 'typebox';
import { Compile } from 'typebox/compile';

const uuid = Type.String({ pattern: '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' });
const text = (maxLength: number) => Type.String({ maxLength });
const counter = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });
const count = Type.Integer({ minimum: 0, maximum: 2_147_483_647 });

const bytes = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });

const Facts = Type.Object({
  arch: Type.Enum(['amd64', 'arm64'] as const),
  cores: Type.Number({ exclusiveMinimum: 0 }),
  mem_mib: count,
  disk_mib: count,
  accelerator: Type.Enum(['kvm', 'tcg'] as const),
  cpu_model: text(200),
  vmm: text(200),
  gpus: count,
});

const Observed = Type.Object({
  vm_id: uuid,
  generation: count,
  status: Type.Enum([
    'building',
    'booting',
    'running',
    'stopping',
    'stopped',
    'pausing',
    'paused',
    'deleting',
    'deleted',
    'failed',
  ] as const),
  error: Type.Optional(Type.String()),
  vm_ip: Type.Optional(text(64)),
  host_ip: Type.Optional(text(64)),
  port_map: Type.Optional(Type.Array(PortMapRecord, { maxItems: 256 })),
  manifest_name: Type.Optional(text(512)),
  memory: Type.Optional(Type.Boolean()),
});

const SnapshotObserved = Type.Object({
  snapshot_id: uuid,
  generation: count,
  status: Type.Enum(['ready', 'failed', 'deleted'] as const),
  error: Type.Optional(Type.String()),
  no_changes: Type.Optional(Type.Boolean()),
  artifact_ref: Type.Optional(text(1024)),
  manifest_name: Type.Optional(text(512)),
  disk_bytes: Type.Optional(bytes),
  fc_version: Type.Optional(text(200)),
  cpu_marker: Type.Optional(text(400)),
  mem_bytes: Type.Optional(bytes),
});

const Message = Type.Union([
  Type.Object({
    type: Type.Literal('hello'),
    runner_id: uuid,
    region: text(64),
    data_url: Type.String({ maxLength: 512, pattern: '^(https?://|unix:/)' }),
    facts: Facts,
  }),
  Type.Object({ type: Type.Literal('observe'), seq: Type.Integer(), observations: Type.Array(Observed) }),
  Type.Object({
    type: Type.Literal('observe-snapshots'),
    seq: Type.Integer(),
    observations: Type.Array(SnapshotObserved),
  }),
  Type.Object({
    type: Type.Literal('build-result'),
    seq: Type.Integer(),
    result: Type.Object({
      job_id: uuid,
      attempt: count,
      error: Type.Optional(Type.String()),
      manifest_name: Type.Optional(text(512)),
      layer_count: Type.Optional(count),
    }),
  }),
  Type.Object({
    type: Type.Literal('usage'),
    readings: Type.Array(
      Type.Object({
        vm_id: uuid,
        incarnation: Type.String({ minLength: 1, maxLength: 100 }),
        cpu_usec: counter,
        age_usec: counter,
      }),
      { maxItems: USAGE_READINGS_MAX },
    ),
  }),
  Type.Object({ type: Type.Literal('heartbeat'), ready: Type.Boolean() }),
]);

const check = Compile(Message);

/** @throws with what is wrong with it; the link is then closed. */
export function readRunnerMessage(data: string): RunnerMessage {
  let value: unknown;
  try {
    value = JSON.parse(data);
  } catch {
    throw new Error('not JSON');
  }
  if (check.Check(value)) return value;
  const type = (value as { type?: unknown } | null)?.type;
  const [first] = check.Errors(value).filter((error) => error.instancePath !== '');
  throw new Error(
    `message of type ${JSON.stringify(type)?.slice(0, 40)} is not valid${first ? ` at ${first.instancePath}: ${first.message}` : ''}`,
  );
}

/** Longest reason that is kept of a failure, in characters. */
const ERROR_CHARS = 4_000;

/** A runner's reason, fit for a column and for people: bounded, and nothing that PostgreSQL cannot hold. */
export function readReason(reason: string | undefined): string | undefined {
  const clean = reason?.replaceAll('\0', '').toWellFormed().trim();
  if (clean === undefined || clean === '') return undefined;
  // Half a character at the cut is none that a column takes.
  return clean.length > ERROR_CHARS ? `${clean.slice(0, ERROR_CHARS).toWellFormed()}…` : clean;
}

/** Assignments that fit into one message with room to spare. */
export const SYNC_PART_BYTES = LINK_MESSAGE_MAX_BYTES / 2;
