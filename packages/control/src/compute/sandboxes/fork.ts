/**
 * Forks. The child is placed at once on the host of its source, the only one with the memory and disk. Until the host
 * reports that it has captured them, no other fork of the source starts, so that the source is paused once at a time.
 */
import {
  BOUNDS,
  checkDisplayName,
  conflict,
  formatSandboxId,
  quote,
  sandboxNotFound,
  type SandboxForkRequest,
  type SandboxForkResponse,
  type CodeOf,
} from '@releap/contract';
import { queryAll, columns, queryOne, SANDBOX_COLUMNS, statement, type SandboxRow } from '@releap/database';
import { RANDOM, type IdGenerator } from '../../platform/idempotency/id-generator.ts';
import { copyMounts } from '../../storage/object-stores/mounts.ts';
import { readHost } from '../scheduler/hosts.ts';
import { isOvercommitted } from '../scheduler/placement.ts';
import { allocate } from '../scheduler/allocate.ts';
import {
  preemptFor,
  InsufficientCapacityError,
  admissionError,
  type RestartContext,
} from '../scheduler/restart.ts';
import { copySecrets } from '../../storage/secrets/placeholders.ts';
import { readSandboxId } from './change.ts';
import { readEnvironments } from './environment.ts';
import { createSandbox, specOfCopy } from './insert.ts';
import { REACHABLE } from './queries.ts';
import { decide, refusal, refusalCode, type StateDeadlines } from './transitions.ts';

const ROW = columns('s', SANDBOX_COLUMNS);
const SOURCE = statement<SandboxRow>(
  'fork-source',
  `select ${ROW} from sandboxes s where id = $1 and ${REACHABLE('$2', '$3', 's')} for no key update`,
);
/** The fork that an interrupted earlier attempt inserted. */
const MADE = statement<SandboxRow>(
  'fork-made',
  `select ${ROW} from sandboxes s where id = $1 and project_id = $2`,
);
/** A fork that the host has not yet reported as captured. */
const IN_PROGRESS = statement<{ id: string; region: string }>(
  'fork-in-progress',
  `select id, region from sandboxes where forked_from = $1 and status in ('pending', 'assigned') limit 1`,
);
/** Keeps the source's memory and disk for the fork, even if the source is deleted right after. */
const KEEP_SOURCE = statement(
  'fork-keep-source',
  'update sandboxes set pending_fork = $2, updated_at = now() where id = $1',
);
/**
 * `POST /vms/:id/fork`: validates and inserts the child, holding a lock of the source and, from the insert on, of the host.
 * @param requireCredits throws 402; not called when an earlier attempt has inserted the fork
 * @throws 404, or 409 with the reason
 */
export async function forkSandbox(
  context: RestartContext & { limits: { deadlines: Pick<StateDeadlines, 'assigned'> } },
  shownId: string,
  projectId: string,
  body: SandboxForkRequest,
  requireCredits: () => Promise<void>,
  ids: IdGenerator = RANDOM,
): Promise<SandboxForkResponse> {
  const { database, lifecycle, limits } = context;
  // Always in this order: an earlier attempt with the same seed has generated the same values.
  const generated = { id: ids.uuid(), jobId: ids.uuid(), accessToken: ids.token('sandbox') };
  const asked = checkDisplayName(body.name);
  const { uuid: id, region } = readSandboxId(shownId);
  const refuse = (why: string, code: CodeOf<409>): Error =>
    conflict(`sandbox ${quote(shownId)} cannot be forked: ${why}`, code);
  const answer = (child: SandboxRow): SandboxForkResponse => ({
    vm_id: formatSandboxId(child.region, child.id),
    job_id: child.job_id,
    name: child.spec.name ?? '',
    status: 'assigned',
    access_token: generated.accessToken,
    forked_from: formatSandboxId(child.region, id),
  });
  if (ids.retried) {
    const made = await queryOne(database.pool, MADE, [generated.id, projectId]);
    if (made !== undefined) return answer(made);
  }
  await requireCredits();
  const written = allocate(database, async (client) => {
    const source = await queryOne(client, SOURCE, [id, projectId, region]);
    if (source === undefined) throw sandboxNotFound(shownId);
    if (decide('fork', source) === undefined)
      throw refuse(refusal('fork', source), refusalCode('fork', source));
    const other = await queryOne(client, IN_PROGRESS, [id]);
    if (other !== undefined)
      throw refuse(
        `another fork of it is in progress (${formatSandboxId(other.region, other.id)}): try again in a moment`,
        'concurrent_change',
      );
    const name =
      asked ??
      `${source.spec.name?.slice(0, BOUNDS.displayNameChars - SUFFIX.length).toWellFormed()}${SUFFIX}`;
    const env = {
      ...(source.env_bytes === 0 ? {} : (await readEnvironments(client, [id])).get(id)),
      ...(await copySecrets(client, { from: id, to: generated.id })),
    };
    const row = await createSandbox(client, {
      owner: { kind: 'project', projectId },
      spec: specOfCopy(source, name, env),
      source: { kind: 'fork', from: source },
      ids: generated,
      deadlineMs: limits.deadlines.assigned,
    });
    if (row === undefined) throw new Error('the fork was not written');
    await copyMounts(client, { from: id, to: row.id });
    await queryAll(client, KEEP_SOURCE, [id, row.id]);
    // The child is allocated already. A child that becomes paused needs no cores and memory of the host.
    const runs = row.desired === 'running';
    const need = {
      cpu: runs ? row.cpu : 0,
      mem_mib: runs ? row.mem_mib : 0,
      disk_mib: row.scratch_mib + row.mem_mib,
      gpus: 0,
      overcommitted: isOvercommitted(row, limits.overcommit),
    };
    const host =
      row.runner_id === null ? undefined : await readHost(client, row.runner_id, limits.overcommit);
    const why = host === undefined ? 'it has no host' : admissionError(host, need, limits);
    if (why !== undefined) throw new InsufficientCapacityError(why, row, need);
    return row;
  });
  const child = await written.catch(async (error: unknown) => {
    throw error instanceof InsufficientCapacityError
      ? refuse(await preemptFor(context, error), 'no_capacity')
      : error;
  });
  lifecycle.announce([child]);
  return answer(child);
}

const SUFFIX = '-fork';
