/** What a sandbox needs of a host, from its rows. */
import type { WantedClasses } from '../../fleet/classes/hardware-classes.ts';
import { isInUse } from '../../storage/volumes/uncommitted.ts';
import type { Overcommit } from './overcommit.ts';
import { isOvercommitted, type Need } from './placement.ts';

export interface NeedRow {
  id: string;
  region: string;
  mode: 'burstable' | 'dedicated';
  spot: boolean;
  cpu_arch: string;
  cpu: number;
  mem_mib: number;
  disk_mib: number;
  gpu_host: number;
  /** Null: none. */
  classes: WantedClasses | null;
  /** The one host that it may run on, as the one that has its source, which cannot be moved. */
  required_runner_id: string | null;
  /** Its host builds its image. */
  is_built: boolean;
  is_docker: boolean;
  /** The artifact that it is made from, and the hosts that have it. */
  artifact_id: string | null;
  holders: string[];
  mounts_stores: boolean;
  volumes: string[];
  copy_holders: string[];
  mounted_on: string[];
}

/** Most sandboxes have no origin and no volumes: a subquery runs only where it can find something. */
const when = (condition: string, array: string): string =>
  `case when ${condition} then array(${array}) else '{}' end`;
const HAS_VOLUMES = 's.volume_count > 0';

/**
 * Columns of a sandbox's need, over `NEED_OF`. Sums are of type numeric: each size may be as large as an integer, and
 * an integer sum would overflow and fail every statement that reads the sandbox.
 */
export const NEED = `s.region, s.mode, s.spot, s.cpu_arch, s.cpu, s.mem_mib, s.gpu_host,
  case when made.classes is not null then
    (select jsonb_object_agg(w.kind, jsonb_build_object('slug', w.slug, 'tier', c.tier)) from jsonb_each_text(made.classes) w(kind, slug)
       left join hardware_classes c on c.kind = w.kind and c.slug = w.slug) end as classes,
  s.scratch_mib::double precision + coalesce(s.docker_data_mib, 0) + case when s.has_memory then s.mem_mib else 0 end as disk_mib,
  coalesce(
    made.required_runner_id,
    case when made.snapshot_id is not null then
      (select k.runner_id from snapshots k where k.id = made.snapshot_id
          and (k.kind = 'full' or not exists (select 1 from artifacts a where a.id = k.id and a.stored_at is not null))) end,
    case when made.artifact_id is not null then
      (select l.runner_id from artifacts a join artifact_locations l on l.artifact_id = a.id
         join runners h on h.id = l.runner_id and h.region = s.region
        where a.kind = 'image' and a.stored_at is null and a.id = made.artifact_id and l.status = 'present' limit 1) end
  ) as required_runner_id,
  coalesce(made.root ->> 'type' = 'dockerfile', false) as is_built,
  coalesce((made.root ->> 'docker')::boolean, false) as is_docker,
  s.start_from = 'disk' and exists (select 1 from object_store_mounts o where o.sandbox_id = s.id) as mounts_stores,
  made.artifact_id,
  ${when(
    'made.artifact_id is not null',
    `select l.runner_id from artifact_locations l
         where l.artifact_id = made.artifact_id and l.runner_id is not null and l.status = 'present' and l.desired <> 'deleted'`,
  )} as holders,
  ${when(HAS_VOLUMES, 'select a.volume_id from volume_attachments a where a.sandbox_id = s.id')} as volumes,
  ${when(
    HAS_VOLUMES,
    `select c.runner_id from volume_attachments a join volume_copies c on c.volume_id = a.volume_id
         where a.sandbox_id = s.id and c.desired = 'present' and c.present`,
  )} as copy_holders,
  ${when(
    HAS_VOLUMES,
    `select c.runner_id from volume_attachments a join volume_copies c on c.volume_id = a.volume_id
         where a.sandbox_id = s.id and c.desired = 'present' and ${isInUse('c')}`,
  )} as mounted_on`;
/** What a sandbox is made from is read from its specification once (`offset 0` keeps PostgreSQL from doing it for each column). */
export const NEED_OF = `sandboxes s cross join lateral (
    select (s.spec ->> 'required_runner_id')::uuid as required_runner_id, s.spec -> 'root' as root, s.spec -> 'classes' as classes,
           (s.spec -> 'origin' ->> 'snapshot_id')::uuid as snapshot_id, sandbox_artifact(s.project_id, s.spec) as artifact_id
    offset 0) made`;

export function toNeed(row: NeedRow, overcommit: Overcommit): Need {
  return {
    region: row.region,
    arch: row.cpu_arch,
    cpu: row.cpu,
    mem_mib: row.mem_mib,
    disk_mib: row.disk_mib,
    gpus: row.gpu_host,
    ...(row.classes === null ? {} : { classes: row.classes }),
    requiredRunnerId: row.required_runner_id,
    isBuilt: row.is_built,
    isDocker: row.is_docker,
    holders: row.holders,
    mountsStores: row.mounts_stores,
    volumes: row.volumes,
    copyHolders: row.copy_holders,
    mountedOn: row.mounted_on,
    overcommitted: isOvercommitted(row, overcommit),
  };
}
