/** Templates of functions in the database: which snapshot has the memory of a version whose handler is ready, on which host. */
import type { RunnerFacts } from '@releap/contract';
import {
  columns,
  queryAll,
  queryOne,
  SANDBOX_COLUMNS,
  statement,
  type Queryable,
  type SandboxRow,
  type SnapshotRow,
} from '@releap/database';

/** What a guest runs on, over `runners`: templates are captured again when it changes, also where the older ones can be restored. */
export const MACHINE = (runner: string): string =>
  `concat_ws(' ', ${['vmm', 'cpu_model', 'accelerator', 'guest'].map((fact) => `${runner}.facts ->> '${fact}'`).join(', ')})`;

/** The instance that is captured, locked. $1 sandbox */
const SOURCE = statement<SandboxRow>(
  'function-template-source',
  `select ${columns('s', SANDBOX_COLUMNS)} from sandboxes s where id = $1 and owner_kind = 'service' for no key update`,
);

/** What an earlier server has begun to take of it. $1 sandbox */
const BEGUN = statement<{ id: string }>(
  'function-template-begun',
  `select k.id from snapshots k join function_templates t on t.snapshot_id = k.id
    where k.sandbox_id = $1 and k.status in ('pending', 'ready') limit 1`,
);

const INSERT = statement(
  'function-template-insert',
  `insert into function_templates (version_id, snapshot_id, runner_id, machine)
   select $1, $2, r.id, ${MACHINE('r')} from runners r where r.id = $3`,
);

const STATE = statement<Pick<SnapshotRow, 'status' | 'error'>>(
  'function-template-state',
  'select status, error from snapshots where id = $1',
);

/** With each host that takes sandboxes, and has it or can fetch it; those of the host's own machine first. $1 version */
const READY = statement<ReadyTemplate>(
  'function-templates-ready',
  `select k.id, k.kind, k.sandbox_id, k.fc_version, k.cpu_marker, r.id as runner_id, r.facts,
          r.id = k.runner_id or l.id is not null as is_holder
     from function_templates t join snapshots k on k.id = t.snapshot_id and k.status = 'ready'
     join runners r on r.region = k.region and r.status = 'online' and r.ready and r.draining_since is null
                   and r.id <> all (t.failed_on)
     left join artifacts a on a.id = k.id
     left join artifact_locations l
       on l.artifact_id = k.id and l.runner_id = r.id and l.status = 'present' and l.desired <> 'deleted'
    where t.version_id = $1 and (r.id = k.runner_id or l.id is not null or a.stored_at is not null and 'artifact' = any(r.kinds))
    order by t.machine = ${MACHINE('r')} desc nulls last, is_holder desc, t.created_at desc limit 64`,
);

/** Those whose hosts are connected, and have another machine now. */
const OUTDATED = statement<{ snapshot_id: string; facts: RunnerFacts; stored: boolean } & Captured>(
  'function-templates-outdated',
  `select t.snapshot_id, k.fc_version, k.cpu_marker, r.facts,
          exists (select 1 from artifacts a where a.id = k.id and a.stored_at is not null) as stored
     from function_templates t
     join snapshots k on k.id = t.snapshot_id and k.status = 'ready'
     join runners r on r.id = k.runner_id and r.status = 'online' and r.ready
    where t.machine is distinct from ${MACHINE('r')} limit 1000`,
);

/** The machines of all connected hosts. */
const MACHINES = statement<{ facts: RunnerFacts }>(
  'function-template-machines',
  `select distinct on (${MACHINE('r')}) facts from runners r where r.status = 'online' and r.ready`,
);

/** It cannot be restored on a host; removed where that one has captured it. $1 snapshot, $2 host */
const REFUSE = statement<{ snapshot_id: string }>(
  'function-template-refuse',
  `update function_templates set failed_on = array_append(failed_on, $2::uuid)
    where snapshot_id = $1 and runner_id <> $2 and $2::uuid <> all (failed_on) returning snapshot_id`,
);

/**
 * Of versions that are not invoked any more, that cannot serve, whose snapshot is gone, or of which the same host has a newer one; and
 * these ($1 snapshots).
 */
const FORGET = statement(
  'function-templates-forget',
  `delete from function_templates t using snapshots k, function_versions v, functions f
    where k.id = t.snapshot_id and v.id = t.version_id and f.id = v.function_id
      and (t.snapshot_id = any($1::uuid[]) or k.status in ('failed', 'deleted') or v.template_state = 'failed'
           or v.version < f.current_version
           or exists (select 1 from function_templates n join snapshots m on m.id = n.snapshot_id and m.status = 'ready'
                       where n.version_id = t.version_id and n.runner_id = t.runner_id and n.created_at > t.created_at))`,
);

/** Snapshots that no version names any more, unless a sandbox that starts may still read them. */
const UNUSED = statement<{ id: string }>(
  'function-templates-unused',
  `select k.id from snapshots k
    where k.owner_service = 'functions' and k.status <> 'deleted'
      and not exists (select 1 from function_templates t where t.snapshot_id = k.id)
      and not exists (select 1 from function_instances i join sandboxes s on s.id = i.sandbox_id
                       where s.parent_snapshot_id = k.id and s.manifest_name is null and s.desired = 'running')
    limit 200`,
);

type Captured = Pick<SnapshotRow, 'fc_version' | 'cpu_marker'>;

export type ReadyTemplate = Pick<SnapshotRow, 'id' | 'kind' | 'sandbox_id'> &
  Captured & {
    /** A host that may restore it, and whether it need not fetch it before. */
    runner_id: string;
    facts: RunnerFacts;
    is_holder: boolean;
  };

export function lockSource(client: Queryable, sandboxId: string): Promise<SandboxRow | undefined> {
  return queryOne(client, SOURCE, [sandboxId]);
}

export async function begunTemplate(client: Queryable, sandboxId: string): Promise<string | undefined> {
  return (await queryOne(client, BEGUN, [sandboxId]))?.id;
}

export async function insertTemplate(
  client: Queryable,
  versionId: string,
  { id, runner_id }: Pick<SnapshotRow, 'id' | 'runner_id'>,
): Promise<void> {
  await queryAll(client, INSERT, [versionId, id, runner_id]);
}

export function templateState(
  on: Queryable,
  snapshotId: string,
): Promise<Pick<SnapshotRow, 'status' | 'error'> | undefined> {
  return queryOne(on, STATE, [snapshotId]);
}

export function readyTemplates(on: Queryable, versionId: string): Promise<ReadyTemplate[]> {
  return queryAll(on, READY, [versionId]);
}

/** Those whose hosts have another machine than the one that captured them. */
export function outdatedTemplates(
  on: Queryable,
): Promise<({ snapshot_id: string; facts: RunnerFacts; stored: boolean } & Captured)[]> {
  return queryAll(on, OUTDATED);
}

export async function connectedMachines(on: Queryable): Promise<RunnerFacts[]> {
  return (await queryAll(on, MACHINES)).map(({ facts }) => facts);
}

/** A host could not restore it. @returns false for the host that has captured it */
export async function refuseTemplate(on: Queryable, snapshotId: string, runnerId: string): Promise<boolean> {
  return (await queryOne(on, REFUSE, [snapshotId, runnerId])) !== undefined;
}

/** @param snapshotIds those that cannot be restored any more */
export async function forgetTemplates(on: Queryable, snapshotIds: readonly string[]): Promise<void> {
  await queryAll(on, FORGET, [snapshotIds]);
}

export function unusedSnapshots(on: Queryable): Promise<{ id: string }[]> {
  return queryAll(on, UNUSED);
}
