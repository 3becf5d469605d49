import {
  assertAvailable,
  DEFAULTS,
  formatSandboxId,
  overloaded,
  resolveSandboxCreate,
  tokenDigest,
  type PlatformLimits,
  type SandboxCreateRequest,
  type SandboxCreateResponse,
} from '@releap/contract';
import { isUniqueViolation, type Database } from '@releap/database';
import type { Principal } from '../auth/authenticator.ts';
import { RANDOM, type Fresh } from '../idempotency/fresh.ts';
import { resolveRoot } from '../images/images.ts';
import type { ControlLimits } from '../limits.ts';
import type { Regions } from '../regions/regions.ts';
import type { Scheduler } from '../scheduler/scheduler.ts';
import { getRecord, insertSandbox } from './queries.ts';

export interface CreateContext {
  database: Database;
  regions: Regions;
  scheduler: Scheduler;
  limits: ControlLimits;
  platform: PlatformLimits;
  /** @throws 402 */
  requireCredits: (orgId: string) => Promise<void>;
}

/** `POST /vms`: every rule, then one statement that writes it all down, then placement on its way. */
export async function createSandbox(
  context: CreateContext,
  principal: Principal,
  body: SandboxCreateRequest,
  fresh: Fresh = RANDOM,
): Promise<SandboxCreateResponse> {
  const { database, scheduler, limits } = context;
  // In this order, whatever comes of it: an earlier try with the same seed has made the same.
  const [id, jobId, accessToken, otherName] = [
    fresh.uuid(),
    fresh.uuid(),
    fresh.token('sandbox'),
    fresh.sandboxName(),
  ];
  const answer = (written: { region: string; name: string }): SandboxCreateResponse => ({
    vm_id: formatSandboxId(written.region, id),
    job_id: jobId,
    name: written.name,
    status: 'pending',
    access_token: accessToken,
  });
  if (fresh.retried) {
    const before = await getRecord(database.pool, id, principal.projectId);
    if (before !== undefined) return answer(before);
  }
  const sandbox = resolveSandboxCreate(body, context.platform);
  assertAvailable(sandbox);
  await context.requireCredits(principal.orgId);
  const region = await context.regions.resolve(sandbox.region, principal, scheduler.roomiest);
  const root = await resolveRoot(database, principal.projectId, sandbox.image);

  const place = scheduler.admit();
  if (!place.admitted) {
    throw overloaded(
      `${place.waiting} sandboxes are waiting for a host already, and no more than ${limits.createQueue} may: try again later`,
    );
  }
  const name = sandbox.name ?? otherName;
  try {
    await insertSandbox(database, {
      id,
      jobId,
      sandbox,
      name,
      projectId: principal.projectId,
      region,
      arch: sandbox.cpu_arch ?? DEFAULTS.cpuArch,
      root,
      desired: 'running',
      accessTokenHash: tokenDigest(accessToken),
      pendingMs: limits.deadlines.pending,
    });
  } catch (error) {
    place.withdraw();
    const before = isUniqueViolation(error)
      ? await getRecord(database.pool, id, principal.projectId)
      : undefined;
    if (before !== undefined) return answer(before);
    throw error;
  }
  scheduler.kick();
  return answer({ region, name });
}
