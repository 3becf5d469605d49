/** What a restored database names, and the store or no host here has: for the operator, by name. */
import { queryAll, statement, type Queryable } from '@releap/database';
import type { BlobStore } from '../../storage/artifacts/blob-store.ts';

export interface ReferencedBlob {
  digest: string;
  bytes: string;
}

/** The blobs that rows of the database name, and that the store has had. */
export const REFERENCED_BLOBS = `
  select b.digest, b.bytes::text as bytes from blobs b
   where b.stored_at is not null and exists (select 1 from blob_references r where r.digest = b.digest) order by b.digest`;
const REFERENCED = statement<ReferencedBlob>('backup-referenced-blobs', REFERENCED_BLOBS);
/** How many blobs are looked for at the same time. */
const PARALLEL = 16;

/** The referenced blobs that the store lacks, or has with another size. */
export async function missingBlobs(
  on: Queryable,
  store: BlobStore,
): Promise<{ referenced: number; missing: string[] }> {
  const blobs = await queryAll(on, REFERENCED, []);
  const missing: string[] = [];
  const rest = blobs.values();
  const look = async (): Promise<void> => {
    for (const { digest, bytes } of rest)
      if ((await store.stat(digest))?.bytes !== Number(bytes)) missing.push(digest);
  };
  await Promise.all(Array.from({ length: PARALLEL }, look));
  return { referenced: blobs.length, missing: missing.sort() };
}

export interface LostContent {
  /** `image`, `snapshot`, `volume`, `build context`, or another kind of artifact. */
  kind: string;
  name: string;
  project: string;
  /** Hosts that have it too: when they are back, it can be stored again. */
  hosts: string[];
  detail: string;
}

/** Without those that are about to be removed, as of a move that has ended. $1 digests */
const LOST_ARTIFACTS = statement<LostContent>(
  'backup-lost-artifacts',
  `select a.kind, p.name as project, '' as detail,
          coalesce((select s.name from snapshots s where s.id = a.id), (select v.name from sandbox_states v where v.id = a.sandbox_id),
                   (select string_agg(i.name, ', ' order by i.name) from images i
                     where i.project_id = a.project_id and i.manifest_name = a.digest), a.digest, a.id::text) as name,
          array(select l.runner_id::text from artifact_locations l where l.artifact_id = a.id and l.status = 'present' and l.runner_id is not null) as hosts
     from artifacts a join projects p on p.id = a.project_id
    where a.unneeded_since is null
      and exists (select 1 from artifact_parts ap where ap.artifact_id = a.id and ap.digest = any($1::text[]))
    order by 1, 2, 4`,
);
/** $1 digests */
const LOST_VOLUMES = statement<LostContent>(
  'backup-lost-volumes',
  `select 'volume' as kind, v.name, p.name as project, '{}'::text[] as hosts,
          'commits ' || string_agg(m.number::text, ', ' order by m.number)
            || case when bool_or(m.number = v.head) then ', the newest among them' else '' end as detail
     from volume_manifests m join volumes v on v.id = m.volume_id join projects p on p.id = v.project_id
    where v.deleted_at is null and (m.root = any($1::text[])
       or exists (select 1 from volume_blobs b where b.volume_id = m.volume_id and b.digest = any($1::text[])
                   and b.first <= m.number and (b.last is null or b.last >= m.number)))
    group by v.id, p.name order by 3, 2`,
);
/** $1 digests */
const LOST_CONTEXTS = statement<LostContent>(
  'backup-lost-contexts',
  `select 'build context' as kind, i.name, coalesce(p.name, '') as project, '{}'::text[] as hosts, 'the image must be built from a new context' as detail
     from images i left join projects p on p.id = i.project_id
    where i.source -> 'context' ->> 'digest' = any($1::text[]) order by 3, 2`,
);

/** What cannot be read without these blobs. */
export async function lostContents(on: Queryable, digests: readonly string[]): Promise<LostContent[]> {
  if (digests.length === 0) return [];
  const found = [];
  for (const query of [LOST_ARTIFACTS, LOST_VOLUMES, LOST_CONTEXTS])
    found.push(...(await queryAll(on, query, [digests])));
  return found;
}

const REGION_STORES = statement<{ bucket: string }>(
  'backup-region-stores',
  'select bucket from stores where bucket is not null order by bucket',
);

/** The buckets of regions, whose content is not looked for. */
export async function regionBuckets(on: Queryable): Promise<string[]> {
  return (await queryAll(on, REGION_STORES, [])).map(({ bucket }) => bucket);
}

export interface HostContent {
  id: string;
  region: string;
  /** Sandboxes whose disk or memory is on this host alone. */
  sandboxes: string[];
  /** Snapshots that are not in the store. */
  snapshots: string[];
  /** Volumes with changes that were not committed. */
  volumes: string[];
}

const HOSTS = statement<HostContent>(
  'backup-hosts',
  `select r.id, r.region,
          array(select coalesce(s.name, s.id::text) from sandbox_states s
                 where s.runner_id = r.id and s.held and s.desired <> 'deleted' and s.owner_service is null order by 1) as sandboxes,
          array(select s.name from snapshots s
                 where s.runner_id = r.id and s.status = 'ready' and s.desired = 'ready'
                   and not exists (select 1 from artifacts a where a.id = s.id and a.stored_at is not null) order by 1) as snapshots,
          array(select v.name from volume_copies c join volumes v on v.id = c.volume_id
                 where c.runner_id = r.id and c.dirty_since is not null and v.deleted_at is null order by 1) as volumes
     from runners r where r.forgotten_at is null order by r.region, r.id`,
);

/** The hosts that the database knows, and what only they have. */
export async function hostContents(on: Queryable): Promise<HostContent[]> {
  return await queryAll(on, HOSTS, []);
}
