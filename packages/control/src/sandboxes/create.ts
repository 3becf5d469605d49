import {
  assertAvailable,
  DEFAULTS,
  formatSandboxId,
  newSandboxName,
  newToken,
  overloaded,
  resolveSandboxCreate,
  tokenDigest,
  type PlatformLimits,
  type SandboxCreateRequest,
  type SandboxCreateResponse,
} from '@releap/contract';
import { isForeignKeyViolation, type Database } from '@releap/database';
import type { Principal } from '../auth/authenticator.ts';
import { resolveRoot } from '../images/images.ts';
import type { ControlLimits } from '../limits.ts';
import type { Regions } from '../regions/regions.ts';
import type { Scheduler } from '../scheduler/scheduler.ts';
import { mintByName } from '../secrets/placeholders.ts';
import { insertSandbox } from './queries.ts';

export interface CreateContext {
  database: Database;
  regions: Regions;
  scheduler: Scheduler;
  limits: ControlLimits;
  platform: PlatformLimits;
}

/** `POST /vms`: every rule, then one statement that writes it all down, then placement on its way. */
export async function createSandbox(
  context: CreateContext,
  principal: Principal,
  body: SandboxCreateRequest,
): Promise<SandboxCreateResponse> {
  const { database, scheduler, limits } = context;
  const sandbox = resolveSandboxCreate(body, context.platform);
  assertAvailable(sandbox);
  const region = await context.regions.resolve(sandbox.region, principal, scheduler.roomiest);
  const root = await resolveRoot(database, principal.projectId, sandbox.image);
  const secrets = await mintByName(database.pool, principal.projectId, sandbox.secrets);

  const place = scheduler.admit();
  if (!place.admitted) {
    throw overloaded(
      `${place.waiting} sandboxes are waiting for a host already, and no more than ${limits.createQueue} may: try again later`,
    );
  }
  const accessToken = newToken('sandbox');
  const name = sandbox.name ?? newSandboxName();
  let written;
  try {
    written = await insertSandbox(database, {
      sandbox,
      name,
      projectId: principal.projectId,
      region,
      arch: sandbox.cpu_arch ?? DEFAULTS.cpuArch,
      root,
      secrets,
      desired: 'running',
      accessTokenHash: tokenDigest(accessToken),
      pendingMs: limits.deadlines.pending,
    });
  } catch (error) {
    place.withdraw();
    // A secret was erased meanwhile: this says which.
    if (isForeignKeyViolation(error)) await mintByName(database.pool, principal.projectId, sandbox.secrets);
    throw error;
  }
  scheduler.kick();
  return {
    vm_id: formatSandboxId(region, written.id),
    job_id: written.jobId,
    name,
    status: 'pending',
    access_token: accessToken,
  };
}
