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
  tokenDigest,
  type SandboxForkRequest,
  type SandboxForkResponse,
} from '@releap/contract';
import { all, first, statement } from '@releap/database';
import { RANDOM, type Fresh } from '../idempotency/fresh.ts';
import { pinned } from '../runners/assignment.ts';
import { readHost } from '../scheduler/hosts.ts';
import { withSchedulerLock } from '../scheduler/scheduler-lock.ts';
import {
  preemptFor,
  InsufficientCapacityError,
  admissionError,
  type RestartContext,
} from '../scheduler/restart.ts';
import { copySecrets } from '../secrets/placeholders.ts';
import { readSandboxId } from './change.ts';
import { IN_REGION } from './queries.ts';
import type { SandboxRow } from './transition-sql.ts';
import { decide, refusal } from './transitions.ts';

const SOURCE = statement<SandboxRow>(
  'fork-source',
  `select * from sandboxes where id = $1 and project_id = $2 and ${IN_REGION('$3')} for no key update`,
);
/** By a try that was cut off. */
const MADE = statement<SandboxRow>('fork-made', 'select * from sandboxes where id = $1 and project_id = $2');
/** One that its host has not yet said to have taken. */
const IN_PROGRESS = statement<{ id: string; region: string }>(
  'fork-in-progress',
  `select id, region from sandboxes where forked_from = $1 and status in ('pending', 'assigned') limit 1`,
);
const INSERT = statement<SandboxRow>(
  'fork-insert',
  `with job as (
     insert into jobs (id, project_id, kind, status, attempts, runner_id, sandbox_id)
     select $2, s.project_id, 'vm.create', 'running', 1, s.runner_id, $1 from sandboxes s where s.id = $3
   )
   insert into sandboxes (id, job_id, forked_from, name, access_token_hash, root, origin, status, held, has_memory, deadline_at,
     desired, start_from, project_id, region, runner_id, mode, cpu, vcpus, mem_mib, scratch_mib, ports, env, egress_policy,
     persistent, spot, cpu_arch, image_ref)
   select $1, $2, s.id, $4, $5, $6::jsonb, $7::jsonb, 'assigned', true, true, now() + $8 * interval '1 millisecond',
     s.status, case s.status when 'running' then 'memory' else 'disk' end, s.project_id, s.region, s.runner_id, s.mode, s.cpu, s.vcpus,
     s.mem_mib, s.scratch_mib, s.ports, s.env || $9::jsonb, s.egress_policy, s.persistent, s.spot, s.cpu_arch, s.image_ref
     from sandboxes s where s.id = $3
   returning *`,
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
  fresh: Fresh = RANDOM,
): Promise<SandboxForkResponse> {
  const { database, lifecycle, limits } = context;
  // In this order, whatever comes of it: an earlier try with the same seed has made the same.
  const drawn = { id: fresh.uuid(), jobId: fresh.uuid(), accessToken: fresh.token('sandbox') };
  const asked = checkDisplayName(body.name);
  const { uuid: id, region } = readSandboxId(shownId);
  const refuse = (why: string): Error => conflict(`sandbox ${quote(shownId)} cannot be forked: ${why}`);
  const answer = (child: SandboxRow): SandboxForkResponse => ({
    vm_id: formatSandboxId(child.region, child.id),
    job_id: child.job_id,
    name: child.name,
    status: 'assigned',
    access_token: drawn.accessToken,
    forked_from: formatSandboxId(child.region, id),
  });
  if (fresh.retried) {
    const made = await first(database.pool, MADE, [drawn.id, projectId]);
    if (made !== undefined) return answer(made);
  }
  await requireCredits();
  const written = withSchedulerLock(database, async (client) => {
    const source = await first(client, SOURCE, [id, projectId, region]);
    if (source === undefined) throw sandboxNotFound(shownId);
    if (decide('fork', source) === undefined) throw refuse(refusal('fork', source));
    const other = await first(client, IN_PROGRESS, [id]);
    if (other !== undefined)
      throw refuse(
        `a fork of it is in progress already (${formatSandboxId(other.region, other.id)}): try again in a moment`,
      );
    const secrets = await copySecrets(client, { from: id, to: drawn.id });
    const [row] = await all(client, INSERT, [
      drawn.id,
      drawn.jobId,
      id,
      asked ?? `${source.name.slice(0, BOUNDS.displayNameChars - SUFFIX.length).toWellFormed()}${SUFFIX}`,
      tokenDigest(drawn.accessToken),
      JSON.stringify(pinned(source)),
      JSON.stringify({ type: 'fork', vm_id: id }),
      limits.deadlines.assigned,
      JSON.stringify(secrets),
    ]);
    if (row === undefined) throw new Error('the fork was not written');
    // It counts already. What lands paused takes no cores and memory of the host.
    const runs = row.desired === 'running';
    const need = {
      cpu: runs ? row.cpu : 0,
      mem_mib: runs ? row.mem_mib : 0,
      disk_mib: row.scratch_mib + row.mem_mib,
      gpus: 0,
    };
    const host = row.runner_id === null ? undefined : await readHost(client, row.runner_id);
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
