/**
 * Instances that serve nothing make way for what waits for a host. Their gateways know which serve nothing, and since when; what waits is
 * read from the database.
 */
import { queryAll, statement, type Queryable } from '@releap/database';

/** Without a host for so long, in milliseconds, a sandbox lacks capacity: a round of placement takes less. */
const WAITED_MS = 2_000;
/** Most instances that one gateway gives up at a time: the next pass asks for more, if they were too few. */
const MOST = 20;
/** A message of the link has no more of them. */
const NAMED_MAX = 1_000;

/** Instances (UUIDs of sandboxes) of which up to `most` are to end that serve nothing, those that have for longest first. */
export interface IdleWanted {
  instances: string[];
  most: number;
}

/**
 * Spot sandboxes wait until there is capacity, GPUs are of no instance, and what needs one host, or hosts of a class, may gain nothing. $1 instances, $2 how long a
 * sandbox has waited, $3 most that are to end, $4 most that are named
 */
const WANTED = statement<IdleWanted>(
  'function-instances-wanted',
  `with waiting as (
     select region, cpu_arch, sum(cpu)::double precision as cpu, sum(mem_mib)::double precision as mem_mib from sandboxes
      where status = 'pending' and created_at < now() - $2 * interval '1 millisecond'
        and not spot and gpu_host = 0 and spec ->> 'required_runner_id' is null and spec -> 'classes' is null
      group by region, cpu_arch
   )
   select (array_agg(s.id order by random()))[1:$4] as instances,
          least($3, ceil(greatest(w.cpu / min(s.cpu), w.mem_mib / min(s.mem_mib))))::integer as most
     from waiting w
     join sandboxes s on s.id = any($1::uuid[]) and s.region = w.region and s.cpu_arch = w.cpu_arch and s.status = 'running'
    group by w.region, w.cpu_arch, w.cpu, w.mem_mib`,
);

/** @param instances those that gateways have */
export async function idleWanted(on: Queryable, instances: readonly string[]): Promise<IdleWanted[]> {
  if (instances.length === 0) return [];
  return await queryAll(on, WANTED, [instances, WAITED_MS, MOST, NAMED_MAX]);
}
