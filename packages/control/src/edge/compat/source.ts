/** Resolves the snapshot, image or Dockerfile of a create. */
import {
  badRequest,
  parseImageReference,
  quote,
  snapshotNotFound,
  type CompatSandboxCreate,
  type SandboxCreateRequest,
} from '@releap/contract';
import { queryAll, statement, type Database } from '@releap/database';

export interface CompatSource {
  image: SandboxCreateRequest['image'];
  /** As the client named it; null for a Dockerfile that is built. */
  snapshot: string | null;
  /** Cores, GiB, GiB; what is absent has the defaults. */
  size: { cpu?: number; memory?: number; disk?: number };
  /** Of a disk snapshot, whose size a create may only repeat; null for images. MiB. */
  diskMib: number | null;
}

interface Named {
  /** The first one takes precedence. */
  turn: number;
  kind: 'registered' | 'captured' | 'full' | 'image';
  name: string;
  cpu: number | null;
  memory: number | null;
  disk: number | null;
  disk_mib: number | null;
}

/**
 * Snapshots and images of this name. Snapshots of the facade are also found by id. $1 project,
 * $2 name
 */
const NAMED = statement<Named>(
  'compat-source-by-name',
  `select 1 as turn, 'registered' as kind, i.name, c.cpu, c.memory, c.disk, null as disk_mib
     from compat_snapshots c join images i on i.id = c.image_id
    where c.project_id = $1 and (c.name = $2 or c.image_id::text = lower($2))
   union all
   select 2, case kind when 'disk' then 'captured' else kind end, name, cpu, mem_mib / 1024.0, null, scratch_mib
     from snapshots where project_id = $1 and name = $2 and status <> 'deleted'
   union all
   select case when project_id is null then 4 else 3 end, 'image', name, null, null, null, null
     from images where name = $2 and (project_id = $1 or project_id is null)
    order by turn`,
);

/** A Dockerfile of one instruction, `FROM`, is a name or a reference and needs no build. */
const ONLY_FROM = /^(?:\s*#[^\n]*\n)*\s*FROM\s+([^\s$]+)\s*$/i;

/**
 * @param fallback the deployment's snapshot for creates that name none
 * @throws 400, 404
 */
export async function resolveSource(
  database: Database,
  projectId: string,
  body: Pick<CompatSandboxCreate, 'snapshot' | 'buildInfo'>,
  fallback: string | undefined,
): Promise<CompatSource> {
  const { buildInfo } = body;
  if (buildInfo !== undefined) {
    if (body.snapshot) throw badRequest('snapshot and buildInfo exclude each other: send one of them');
    checkContext(buildInfo.contextHashes);
    const { dockerfileContent: dockerfile } = buildInfo;
    const from = fromAlone(dockerfile);
    if (from === undefined)
      return { image: { type: 'dockerfile', dockerfile }, snapshot: null, size: {}, diskMib: null };
    return (await byName(database, projectId, from, ['image'])) ?? reference(from);
  }
  const name = body.snapshot || fallback;
  if (name === undefined)
    throw badRequest(
      'snapshot or image is required: this deployment has no default snapshot (its operator can set RELEAP_COMPAT_SNAPSHOT)',
    );
  const named = await byName(database, projectId, name, ['registered', 'captured', 'full', 'image']);
  if (named !== undefined) return named;
  // The third step of the protocol's resolution: also a bare name, such as `ubuntu`, is a reference.
  if (!isReference(name)) throw snapshotNotFound(name);
  return reference(name);
}

/** @throws 400 for a build context: those files are in no store of this service */
export function checkContext(contextHashes: readonly string[] | undefined): void {
  if (contextHashes !== undefined && contextHashes.length > 0)
    throw badRequest(
      `buildInfo.contextHashes must be empty, but has ${contextHashes.length} entries: local files cannot be added to an image here; build it with POST /images, and use its name as the snapshot`,
    );
}

/** The reference of a Dockerfile that has no other instruction. */
export function fromAlone(dockerfile: string): string | undefined {
  const ref = ONLY_FROM.exec(dockerfile)?.[1];
  return ref !== undefined && ref !== 'scratch' && isReference(ref) ? ref : undefined;
}

async function byName(
  { pool }: Database,
  projectId: string,
  name: string,
  kinds: readonly Named['kind'][],
): Promise<CompatSource | undefined> {
  const [found] = (await queryAll(pool, NAMED, [projectId, name])).filter(({ kind }) => kinds.includes(kind));
  if (found === undefined) return undefined;
  if (found.kind === 'full')
    throw badRequest(
      `snapshot ${quote(name)} has memory, and sandboxes of the facade are not persistent: restore it with POST /vms, or take one of kind disk`,
    );
  const { cpu, memory, disk } = found;
  return {
    image: found.kind === 'captured' ? { type: 'snapshot', name } : { type: 'named', name: found.name },
    snapshot: name,
    size: {
      ...(cpu === null ? {} : { cpu }),
      ...(memory === null ? {} : { memory }),
      ...(disk === null ? {} : { disk }),
    },
    diskMib: found.disk_mib,
  };
}

function reference(ref: string): CompatSource {
  return { image: { type: 'registry', ref }, snapshot: ref, size: {}, diskMib: null };
}

function isReference(text: string): boolean {
  try {
    return parseImageReference(text).host !== '';
  } catch {
    return false;
  }
}
