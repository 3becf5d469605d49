import {
  badRequest,
  DEFAULTS,
  formatSandboxId,
  overloaded,
  quote,
  resolveSandboxCreate,
  snapshotNotFound,
  stillReplicating,
  type PlatformLimits,
  type ResolvedSandbox,
  type SandboxCreateRequest,
  type SandboxCreateResponse,
} from '@releap/contract';
import {
  queryOne,
  isForeignKeyViolation,
  isUniqueViolation,
  statement,
  type Database,
} from '@releap/database';
import type { Artifacts } from '../../storage/artifacts/artifacts.ts';
import type { Principal } from '../../platform/auth/authenticator.ts';
import { RANDOM, type IdGenerator } from '../../platform/idempotency/id-generator.ts';
import {
  assertAvailable,
  resolveRoot,
  type ReadImage,
  type ResolvedRoot,
} from '../../storage/images/resolve-root.ts';
import type { Overcommit } from '../scheduler/overcommit.ts';
import type { StateDeadlines } from './transitions.ts';
import type { HardwareClasses, WantedClasses } from '../../fleet/classes/hardware-classes.ts';
import type { Regions } from '../../fleet/regions/regions.ts';
import { isOvercommitted, type Need } from '../scheduler/placement.ts';
import type { Scheduler } from '../scheduler/scheduler.ts';
import {
  copyMounts,
  insertMounts,
  resolveMount,
  type ResolvedMount,
} from '../../storage/object-stores/mounts.ts';
import { copySecrets, mintByName } from '../../storage/secrets/placeholders.ts';
import {
  insertAttachments,
  resolveAttachments,
  type ResolvedAttachment,
} from '../../storage/volumes/attachments.ts';
import { keepSnapshot, snapshotByName, snapshotEnvironment } from '../snapshots/queries.ts';
import { assertRestorable, restoredSandbox, type SnapshotHost } from '../snapshots/restore.ts';
import type { SnapshotRow } from '@releap/database';
import { createSandbox, type CreateSandbox } from './insert.ts';
import { insertLease, type NewLease } from './leases.ts';
import type { ReadRecord } from './queries.ts';

export interface CreateContext {
  database: Database;
  regions: Regions;
  classes: HardwareClasses;
  scheduler: Scheduler;
  limits: { overcommit: Overcommit; deadlines: StateDeadlines };
  platform: PlatformLimits;
  readRecord: ReadRecord;
  readImage: ReadImage;
  artifacts: Pick<Artifacts, 'awaitedSnapshot' | 'awaitedImage'>;
  /** @throws 402 */
  requireCredits: (orgId: string) => Promise<void>;
}

/** What the API has not, and the facade has. */
export interface FacadeOptions {
  lease?: NewLease | undefined;
  /** Runs its processes instead of the user of the image. */
  user?: string | undefined;
}

const leaseOf = ({ lease_s: seconds }: SandboxCreateRequest): NewLease | undefined =>
  seconds === undefined ? undefined : { seconds };

/** `POST /vms`: validation, then one statement that writes all rows, then a request for placement. */
export async function createForTenant(
  context: CreateContext,
  principal: Principal,
  body: SandboxCreateRequest,
  ids: IdGenerator = RANDOM,
  { lease = leaseOf(body), user }: FacadeOptions = {},
): Promise<SandboxCreateResponse> {
  const { database, scheduler, limits } = context;
  // Always in this order: an earlier attempt with the same seed has generated the same values.
  const [id, jobId, accessToken, otherName] = [
    ids.uuid(),
    ids.uuid(),
    ids.token('sandbox'),
    ids.sandboxName(),
  ];
  const answer = (written: { region: string; name: string }): SandboxCreateResponse => ({
    vm_id: formatSandboxId(written.region, id),
    job_id: jobId,
    name: written.name,
    status: 'pending',
    access_token: accessToken,
  });
  if (ids.retried) {
    const before = await context.readRecord({ uuid: id, region: null }, principal.projectId);
    if (before !== undefined) return answer(before);
  }
  const resolved = resolveSandboxCreate(body, context.platform);
  const { cpu_arch: arch, wanted } = await context.classes.resolve(resolved);
  const asked = { ...resolved, cpu_arch: arch };
  await context.requireCredits(principal.orgId);
  const { sandbox, region, root, snapshot } = await resolveSource(context, principal, body, asked, wanted);
  const secrets = await mintByName(database.pool, principal.projectId, sandbox.secrets);
  const mounts = await Promise.all(
    sandbox.object_store_mounts.map((mount) => resolveMount(database.pool, principal.projectId, mount)),
  );

  const attachments = await resolveAttachments(database.pool, principal.projectId, sandbox.volumes);

  const place = scheduler.queue.admit(id, principal.orgId);
  if ('refused' in place) throw overloaded(`${place.refused}: try again later`);
  const name = sandbox.name ?? otherName;
  const cpu_arch = sandbox.cpu_arch ?? DEFAULTS.cpuArch;
  try {
    const create: CreateSandbox = {
      owner: { kind: 'project', projectId: principal.projectId },
      spec: {
        ...sandbox,
        name,
        region,
        cpu_arch,
        root: root.root,
        image_ref: root.imageRef,
        volumeCount: attachments.length,
        classes: slugsOf(wanted),
        user,
      },
      source: { kind: 'image' },
      ids: { id, jobId, accessToken },
      secrets,
      deadlineMs: limits.deadlines.pending,
    };
    if (snapshot !== undefined)
      await createFromSnapshot(database, create, snapshot, Object.keys(body.env ?? {}), {
        mounts,
        attachments,
        lease,
      });
    else if (mounts.length + attachments.length === 0 && lease === undefined)
      await createSandbox(database.pool, create);
    else
      await database.transaction(async (on) => {
        await createSandbox(on, create);
        await insertMounts(on, id, mounts);
        await insertAttachments(on, id, attachments);
        if (lease !== undefined) await insertLease(on, id, lease);
      });
    place.taken();
  } catch (error) {
    place.withdraw();
    const before = isUniqueViolation(error)
      ? await context.readRecord({ uuid: id, region: null }, principal.projectId)
      : undefined;
    if (before !== undefined) return answer(before);
    // A secret was erased concurrently: this throws the error that names it.
    if (isForeignKeyViolation(error)) await mintByName(database.pool, principal.projectId, sandbox.secrets);
    throw error;
  }
  scheduler.kick();
  return answer({ region, name });
}

interface ResolvedSource {
  sandbox: ResolvedSandbox;
  region: string;
  root: ResolvedRoot;
  snapshot?: SnapshotRow;
}

/** Resolves the source and the region: a full snapshot is restored only in its own. */
async function resolveSource(
  { database, readImage, regions, scheduler, artifacts, platform, limits }: CreateContext,
  principal: Principal,
  body: SandboxCreateRequest,
  asked: ResolvedSandbox,
  wanted: WantedClasses,
): Promise<ResolvedSource> {
  const need = { ...needOf(asked, limits), classes: wanted };
  if (asked.image.type !== 'snapshot') {
    const region = await regions.resolve(asked.region, principal, scheduler.regionWithMostCapacity(need));
    const root = await resolveRoot(readImage, principal.projectId, asked.image);
    await assertAvailable(artifacts, principal.projectId, root, region);
    return { sandbox: asked, region, root };
  }
  const { name } = asked.image;
  const snapshot = await snapshotByName(database.pool, name, principal.projectId);
  if (snapshot === undefined) throw snapshotNotFound(name);
  // The default is the snapshot's home region, also for a global region that contains it.
  const home = snapshot.region;
  const region = await regions.resolve(asked.region ?? home, principal, async (ids) =>
    ids.includes(home) ? home : scheduler.regionWithMostCapacity(need)(ids),
  );
  if (region !== home && snapshot.kind === 'full')
    throw badRequest(
      `full snapshot ${quote(name)} can only be restored in its home region ${quote(home)}, not in ${quote(region)}`,
    );
  const stored = (await queryOne(database.pool, STORED, [snapshot.id])) !== undefined;
  const host = await queryOne(database.pool, HOST, [snapshot.runner_id]);
  if (host === undefined) throw new Error(`snapshot ${snapshot.id} has no host`);
  // A lost host that alone has it is reported below.
  const isLost = host.status === 'lost';
  if (
    snapshot.kind === 'disk' &&
    snapshot.status === 'ready' &&
    (region !== home || isLost) &&
    (stored || !isLost)
  ) {
    const waits = await artifacts.awaitedSnapshot(snapshot.id, region);
    if (waits !== undefined)
      throw stillReplicating(`snapshot ${quote(name)}`, region, waits.trouble, 'snapshot_not_ready');
  }
  const captured = body.env === undefined ? await snapshotEnvironment(database.pool, snapshot) : {};
  const sandbox = restoredSandbox(asked, body, snapshot, captured, platform);
  assertRestorable(snapshot, host, stored);
  return { sandbox, region, root: { root: snapshot.spec.root, imageRef: `snapshot:${name}` }, snapshot };
}

const slugsOf = (wanted: WantedClasses): Record<string, string> =>
  Object.fromEntries(Object.entries(wanted).map(([kind, { slug }]) => [kind, slug]));

/** The demand for the choice of its region. */
function needOf(asked: ResolvedSandbox, { overcommit }: { overcommit: Overcommit }): Omit<Need, 'region'> {
  return {
    arch: asked.cpu_arch ?? DEFAULTS.cpuArch,
    cpu: asked.cpu,
    mem_mib: asked.mem_mib,
    disk_mib: asked.scratch_mib + (asked.docker_data_mib ?? 0),
    gpus: asked.gpu_host,
    requiredRunnerId: null,
    isBuilt: asked.image.type === 'dockerfile',
    isDocker: asked.image.type === 'dockerfile' && asked.image.docker === true,
    mountsStores: asked.object_store_mounts.length > 0,
    volumes: asked.volumes.map(({ volume }) => volume),
    overcommitted: isOvercommitted(asked, overcommit),
  };
}

const STORED = statement(
  'create-snapshot-stored',
  'select 1 from artifacts where id = $1 and stored_at is not null',
);
const HOST = statement<SnapshotHost>(
  'create-snapshot-host',
  'select id, status, draining_since, last_seen_at, facts from runners where id = $1',
);

/**
 * Locks the snapshot, so that it exists when the row is inserted, which then protects it from deletion. A full
 * snapshot keeps the secrets and mounts of its source.
 * @param given names of the variables that the client sets
 */
async function createFromSnapshot(
  database: Database,
  create: CreateSandbox,
  { id: snapshotId, name, kind, sandbox_id: from }: SnapshotRow,
  given: readonly string[],
  {
    mounts,
    attachments,
    lease,
  }: {
    mounts: readonly ResolvedMount[];
    attachments: readonly ResolvedAttachment[];
    lease: NewLease | undefined;
  },
): Promise<void> {
  await database.transaction(async (client) => {
    const snapshot = await keepSnapshot(client, snapshotId);
    if (snapshot?.status !== 'ready') throw snapshotNotFound(name);
    const except = Object.keys(create.secrets?.env ?? {});
    const copied = kind === 'full' ? await copySecrets(client, { from, to: create.ids.id, except }) : {};
    const both = given.find((variable) => Object.hasOwn(copied, variable));
    if (both !== undefined)
      throw badRequest(
        `env.${both} cannot be set, because snapshot ${quote(name)} has a secret of that name attached: leave it out`,
      );
    const spec = { ...create.spec, env: { ...create.spec.env, ...copied } };
    await createSandbox(client, { ...create, spec, source: { kind: 'snapshot', snapshot } });
    if (kind === 'full' && from !== null) await copyMounts(client, { from, to: create.ids.id });
    await insertMounts(client, create.ids.id, mounts);
    await insertAttachments(client, create.ids.id, attachments);
    if (lease !== undefined) await insertLease(client, create.ids.id, lease);
  });
}
