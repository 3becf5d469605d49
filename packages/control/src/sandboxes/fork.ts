/**
 * Forks. The new sandbox is placed at once, where its source is: memory and disk are nowhere else. Its host takes
 * them and says so; until then no other fork of the same source begins, so that the source stands still once a time.
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
} from '@releap/contract';
import { queryAll, columns, queryOne, SANDBOX_COLUMNS, statement, type SandboxRow } from '@releap/database';
import { RANDOM, type IdGenerator } from '../idempotency/id-generator.ts';
import { readHost } from '../scheduler/hosts.ts';
import { isOvercommitted } from '../scheduler/placement.ts';
import { withSchedulerLock } from '../scheduler/scheduler-lock.ts';
import {
  preemptFor,
  InsufficientCapacityError,
  admissionError,
  type RestartContext,
} from '../scheduler/restart.ts';
import { copySecrets } from '../secrets/placeholders.ts';
import { readSandboxId } from './change.ts';
import { readEnvironments } from './environment.ts';
import { createSandbox, specOfCopy } from './insert.ts';
import { REACHABLE } from './queries.ts';
import { decide, refusal } from './transitions.ts';

const ROW = columns('s', SANDBOX_COLUMNS);
const SOURCE = statement<SandboxRow>(
  'fork-source',
  `select ${ROW} from sandboxes s where id = $1 and ${REACHABLE('$2', '$3', 's')} for no key update`,
);
/** By a try that was cut off. */
const MADE = statement<SandboxRow>(
  'fork-made',
  `select ${ROW} from sandboxes s where id = $1 and project_id = $2`,
);
/** One that its host has not yet said to have taken. */
const IN_PROGRESS = statement<{ id: string; region: string }>(
  'fork-in-progress',
  `select id, region from sandboxes where forked_from = $1 and status in ('pending', 'assigned') limit 1`,
);
/** The source keeps its memory and disk for the fork, even if it is deleted right after. */
const KEEP_SOURCE = statement(
  'fork-keep-source',
  'update sandboxes set pending_fork = $2, updated_at = now() where id = $1',
);
/**
 * `POST /vms/:id/fork`: the rules and the new row, with the source locked and nobody else promising room.
 * @param requireCredits throws 402; an earlier try that has made the fork needs none
 * @throws 404, or 409 with what is in the way
 */
export async function forkSandbox(
  context: RestartContext,
  shownId: string,
  projectId: string,
  body: SandboxForkRequest,
  requireCredits: () => Promise<void>,
  ids: IdGenerator = RANDOM,
): Promise<SandboxForkResponse> {
  const { database, lifecycle, limits } = context;
  // In this order, whatever comes of it: an earlier try with the same seed has made the same.
  const drawn = { id: ids.uuid(), jobId: ids.uuid(), accessToken: ids.token('sandbox') };
  const asked = checkDisplayName(body.name);
  const { uuid: id, region } = readSandboxId(shownId);
  const refuse = (why: string): Error => conflict(`sandbox ${quote(shownId)} cannot be forked: ${why}`);
  const answer = (child: SandboxRow): SandboxForkResponse => ({
    vm_id: formatSandboxId(child.region, child.id),
    job_id: child.job_id,
    name: child.spec.name ?? '',
    status: 'assigned',
    access_token: drawn.accessToken,
    forked_from: formatSandboxId(child.region, id),
  });
  if (ids.retried) {
    const made = await queryOne(database.pool, MADE, [drawn.id, projectId]);
    if (made !== undefined) return answer(made);
  }
  await requireCredits();
  const written = withSchedulerLock(database, async (client) => {
    const source = await queryOne(client, SOURCE, [id, projectId, region]);
    if (source === undefined) throw sandboxNotFound(shownId);
    if (decide('fork', source) === undefined) throw refuse(refusal('fork', source));
    const other = await queryOne(client, IN_PROGRESS, [id]);
    if (other !== undefined)
      throw refuse(
        `a fork of it is in progress already (${formatSandboxId(other.region, other.id)}): try again in a moment`,
      );
    const name =
      asked ??
      `${source.spec.name?.slice(0, BOUNDS.displayNameChars - SUFFIX.length).toWellFormed()}${SUFFIX}`;
    const env = {
      ...(source.env_bytes === 0 ? {} : (await readEnvironments(client, [id])).get(id)),
      ...(await copySecrets(client, { from: id, to: drawn.id })),
    };
    const row = await createSandbox(client, {
      owner: { kind: 'project', projectId },
      spec: specOfCopy(source, name, env),
      source: { kind: 'fork', from: source },
      ids: drawn,
      deadlineMs: limits.deadlines.assigned,
    });
    if (row === undefined) throw new Error('the fork was not written');
    await queryAll(client, KEEP_SOURCE, [id, row.id]);
    // It counts already. What lands paused takes no cores and memory of the host.
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
    throw error instanceof InsufficientCapacityError ? refuse(await preemptFor(context, error)) : error;
  });
  lifecycle.announce([child]);
  return answer(child);
}

const SUFFIX = '-fork';
