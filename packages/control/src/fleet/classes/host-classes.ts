/** Which classes of hardware a host has. */
import type { ClassKind, HostClass, RunnerFacts } from '@releap/contract';
import { queryAll, statement, type Queryable } from '@releap/database';
import type { Logger } from 'pino';

/** By kind; a host without a class of a kind has no entry. */
export type ClassesOfHost = Partial<Record<ClassKind, HostClass>>;

/**
 * Column of a host `r`: its `ClassesOfHost`, or null. The operator's choice wins, then what the host declares, then the name of its
 * processor, where the lowest tier counts if several match. A class that does not exist, or is of another architecture, is none. Each
 * placement round reads it of all hosts: without classes it costs nothing, and the facts of a host are taken apart once.
 */
export const HOST_CLASSES = `case when exists (select 1 from hardware_classes) then
     (select jsonb_object_agg(e.kind, jsonb_build_object('slug', e.slug, 'tier', e.tier, 'source', e.source))
        from (select distinct on (c.kind) c.kind, c.slug, c.tier,
                     case when f.chosen ? c.kind then 'operator' when f.declared ? c.kind then 'host' else 'model' end as source
                from (select r.classes as chosen, coalesce(r.facts -> 'classes', '{}') as declared,
                             lower(r.facts ->> 'processor') as processor, r.facts ->> 'arch' as arch offset 0) f
                cross join hardware_classes c
               where case when f.chosen ? c.kind then f.chosen ->> c.kind = c.slug
                          when f.declared ? c.kind then f.declared ->> c.kind = c.slug
                          else exists (select 1 from unnest(c.cpu_models) t(model)
                                        where position(lower(t.model) in f.processor) > 0) end
                 and (c.arch is null or c.arch = f.arch)
               order by c.kind, c.tier, c.slug) e) end`;

/** $1 slugs by kind, $2 architecture */
const UNKNOWN = statement<{ kind: string; slug: string }>(
  'hardware-classes-unknown',
  `select d.kind, d.slug from jsonb_each_text($1::jsonb) d(kind, slug)
    where not exists (select 1 from hardware_classes c
                       where c.kind = d.kind and c.slug = d.slug and (c.arch is null or c.arch = $2))`,
);

/** Those of these slugs that no class of this architecture has. */
export function unknownClasses(
  on: Queryable,
  slugs: Partial<Record<ClassKind, string>>,
  arch: string,
): Promise<{ kind: string; slug: string }[]> {
  return queryAll(on, UNKNOWN, [JSON.stringify(slugs), arch]);
}

/** A host declares classes that do not exist, or are of another architecture: it counts as one without them. */
export async function warnOfUnknownClasses(
  on: Queryable,
  log: Logger,
  runnerId: string,
  { classes, arch }: RunnerFacts,
): Promise<void> {
  if (classes === undefined) return;
  const unknown = await unknownClasses(on, classes, arch);
  if (unknown.length > 0)
    log.warn(
      { runner: runnerId, arch, classes: unknown },
      'a host declares classes of hardware that do not exist for its architecture: it has none of them',
    );
}
