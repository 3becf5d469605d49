/** Sandboxes as a reconciled kind: their assignments, and the handling of observations. */
import type { SandboxAssignment, SandboxReport } from '@releap/contract/runner';
import {
  queryAll,
  columns,
  SANDBOX_COLUMNS,
  statement,
  type Database,
  type SandboxRow,
} from '@releap/database';
import { guestStores } from '../../storage/object-stores/mounts.ts';
import { volumeMounts } from '../../storage/volumes/attachments.ts';
import type { PullCredentials } from '../../storage/registries/pull-credentials.ts';
import type { AssignmentSecrets } from './assignment-secrets.ts';
import { assignmentPages } from '../../fleet/runners/assignment-pages.ts';
import type { Generation, ReconciledKind } from '../../platform/reconciled-kind.ts';
import { readReason } from '../../fleet/runners/read-reason.ts';
import { reportBatches } from '../../fleet/runners/report-batches.ts';
import { toAssignment } from './assignment.ts';
import { COPIES, COPY_COLUMNS } from './copies.ts';
import { assignable, needsEnvironment, withEnvironments } from './environment.ts';
import type { Lifecycle } from './lifecycle.ts';
import type { Change } from './transition-sql.ts';
import { OCCUPIES_CPU, TRANSITIONS } from './transitions.ts';

/** Takes reports of sandboxes that their rows place on other hosts. */
export interface CopyReports {
  observe: (runnerId: string, reports: readonly SandboxReport[]) => Promise<void>;
}

export interface SandboxKindOptions {
  database: Database;
  lifecycle: Lifecycle;
  credentials: PullCredentials;
  secrets: AssignmentSecrets;
  moves: CopyReports;
  /** A sandbox has released capacity of its host. */
  onCapacityReleased: () => void;
}

const COLUMNS = columns('s', SANDBOX_COLUMNS);
// Beside those whose rows name the runner: copies of sandboxes that are moved to it, or have been moved from it.
/** $1 runner, $2 id, $3 rows */
const PAGE = statement<SandboxRow>(
  'sandbox-assignment-page',
  `(select ${COLUMNS} from sandboxes s where s.held and s.runner_id = $1 and s.id > $2 order by s.id limit $3)
   union all
   (select ${COPY_COLUMNS} from ${COPIES} where m.copy_on = $1 and m.sandbox_id > $2 order by m.sandbox_id limit $3)
   order by id limit $3`,
);
/** $1 ids, $2 runner */
const BY_ID = statement<SandboxRow>(
  'sandbox-assignments-by-id',
  `select ${COLUMNS} from sandboxes s where s.held and s.id = any($1::uuid[]) and s.runner_id = $2
   union all
   select ${COPY_COLUMNS} from ${COPIES} where m.copy_on = $2 and m.sandbox_id = any($1::uuid[])`,
);
/** A sandbox may be on two hosts: both of its rows are on one page, which may be longer. $1 runners, $2 id, $3 rows */
const GENERATIONS = statement<Generation>(
  'sandbox-generations',
  `(select id, runner_id, generation from sandboxes
     where held and runner_id = any($1::uuid[]) and id > $2 order by id limit $3)
   union all
   (select sandbox_id, copy_on, generation from sandbox_moves
     where copy_on = any($1::uuid[]) and sandbox_id > $2 order by sandbox_id fetch first $3 rows with ties)
   order by id fetch first $3 rows with ties`,
);
/** Sandboxes to be marked lost with their runner, which cannot connect meanwhile. $1 statuses, $2 rows */
const ON_LOST_RUNNERS = statement<{ id: string; runner_id: string }>(
  'sandboxes-on-lost-runners',
  `select s.id, s.runner_id from runners r join sandboxes s on s.runner_id = r.id
    where r.status = 'lost' and s.held and s.status = any($1::text[]) limit $2 for share of r`,
);
/** Sandboxes with an unsupported assignment of which the runner holds nothing yet. $1 ids */
const NEVER_STARTED = statement<{ id: string }>(
  'sandboxes-never-started',
  `select id from sandboxes
    where id = any($1::uuid[]) and status in ('assigned', 'building', 'booting') and manifest_name is null`,
);

/** Bound on the environments and Dockerfiles of a batch; a single one may be larger. */
const BATCH_BYTES = 4 * 1024 * 1024;
const LOST_BATCH = 500;
const LOST_FROM = TRANSITIONS.filter(({ on }) => on === 'runner-lost').flatMap(({ from }) => from);

export function createSandboxKind(options: SandboxKindOptions): ReconciledKind {
  const { database, lifecycle, credentials, secrets } = options;

  /** Reads environments and credentials of a bounded batch right before it is sent. */
  async function complete(runnerId: string, rows: readonly SandboxRow[]): Promise<SandboxAssignment[]> {
    const whole = await withEnvironments(database.pool, rows);
    // The environment was erased after its row was read: the sandbox was deleted, so read the row again.
    const erased = whole.filter((row) => needsEnvironment(row) && Object.keys(row.env).length === 0);
    const ids = new Set(erased.map(({ id }) => id));
    const newer = ids.size === 0 ? [] : await queryAll(database.pool, BY_ID, [[...ids], runnerId]);
    const present = whole.filter(({ id }) => !ids.has(id));
    const readable = await secrets.withDomains([...present, ...newer.map((row) => assignable(row))]);
    const living = readable.filter(({ desired }) => desired !== 'deleted');
    const stores = await guestStores(
      database.pool,
      living.map(({ id }) => id),
    );
    const attached = await volumeMounts(
      database.pool,
      living.filter(({ volume_count }) => volume_count > 0).map(({ id }) => id),
    );
    const mounting = readable.map((row) => {
      const objectStores = stores.get(row.id);
      const volumes = attached.get(row.id);
      return {
        ...row,
        ...(objectStores === undefined ? {} : { objectStores }),
        ...(volumes === undefined ? {} : { volumes }),
      };
    });
    return (await credentials.withPullCredentials(mounting)).map(toAssignment);
  }

  return {
    kind: 'sandbox',

    async *assignments(runnerId) {
      for await (const page of assignmentPages(database.pool, PAGE, runnerId))
        for (const batch of batchesOfBytes(page)) yield await complete(runnerId, batch);
    },

    async assignmentsById(runnerId, ids) {
      return complete(runnerId, await queryAll(database.pool, BY_ID, [ids, runnerId]));
    },

    generations: (runnerIds, afterId, limit) =>
      queryAll(database.pool, GENERATIONS, [runnerIds, afterId, limit]),

    async observe(runnerId, reports) {
      for (const [status, batch] of reportBatches(reports as readonly SandboxReport[])) {
        const changes = batch.map((report) => toChange(runnerId, report));
        const moved =
          status === 'unsupported'
            ? await lifecycle.apply('observe:failed', await neverStarted(changes))
            : await lifecycle.apply(`observe:${status}`, changes);
        if (moved.length < batch.length) {
          const own = new Set(moved.map(({ id }) => id));
          await options.moves.observe(
            runnerId,
            batch.filter(({ id }) => !own.has(id)),
          );
        }
        if (moved.some((row) => !row.assigned_to_runner || !occupiesCpu(row))) options.onCapacityReleased();
      }
    },

    async runnersLost(afterMs) {
      for (;;) {
        const moved = await database.transaction(async (client) => {
          const lost = await queryAll(client, ON_LOST_RUNNERS, [LOST_FROM, LOST_BATCH]);
          return lifecycle.applyWithin(
            client,
            'runner-lost',
            lost.map(({ id, runner_id }) => ({
              id,
              runner_id,
              error: `its host ${runner_id} has not been heard from for ${Math.round(afterMs / 1000)} s`,
            })),
          );
        });
        if (moved.length > 0) lifecycle.announce(moved);
        if (moved.length < LOST_BATCH) return;
      }
    },
  };

  /**
   * An unsupported sandbox of which its runner holds nothing fails. The state of any other is unknown and stays; transient
   * states have a deadline.
   */
  async function neverStarted(changes: Change[]): Promise<Change[]> {
    const rows = await queryAll(database.pool, NEVER_STARTED, [changes.map(({ id }) => id)]);
    const ids = new Set(rows.map(({ id }) => id));
    return changes.filter(({ id }) => ids.has(id));
  }
}

function* batchesOfBytes(page: readonly SandboxRow[]): Iterable<SandboxRow[]> {
  let batch: SandboxRow[] = [];
  let bytes = 0;
  for (const row of page) {
    const size = (needsEnvironment(row) ? row.env_bytes : 0) + dockerfileBytes(row);
    if (batch.length > 0 && bytes + size > BATCH_BYTES) {
      yield batch;
      batch = [];
      bytes = 0;
    }
    batch.push(row);
    bytes += size;
  }
  if (batch.length > 0) yield batch;
}

function dockerfileBytes({ spec: { root } }: SandboxRow): number {
  return root.type === 'dockerfile' && 'text' in root.dockerfile ? root.dockerfile.text.length : 0;
}

const occupiesCpu = ({ status }: SandboxRow): boolean => (OCCUPIES_CPU as readonly string[]).includes(status);

function toChange(runnerId: string, { id, generation, status, detail }: SandboxReport): Change {
  const { error, vm_ip, host_ip, port_map, manifest_name, memory, memory_blocked } = detail;
  const reason = readReason(status === 'unsupported' ? `its host cannot run it: ${error ?? ''}` : error);
  return {
    id,
    generation,
    runner_id: runnerId,
    ...(reason === undefined ? {} : { error: reason }),
    ...(vm_ip === undefined ? {} : { vm_ip }),
    ...(host_ip === undefined ? {} : { host_ip }),
    ...(port_map === undefined ? {} : { port_map }),
    ...(manifest_name === undefined ? {} : { manifest_name }),
    ...(memory === undefined ? {} : { memory }),
    ...(memory_blocked === undefined ? {} : { memory_blocked }),
  };
}
