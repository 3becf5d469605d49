/** What the operator does with classes of hardware. */
import {
  badRequest,
  conflict,
  HARDWARE_CLASSES_MAX,
  notFound,
  quote,
  type ClassKind,
  type CpuArch,
  type HardwareClass,
  type HardwareClassRequest,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Database, type Queryable } from '@releap/database';
import { HOST_CLASSES } from './host-classes.ts';

interface Row {
  kind: ClassKind;
  slug: string;
  name: string;
  tier: number;
  arch: CpuArch | null;
  cpu_models: string[];
  hosts: number;
}

const LIST = statement<Row>(
  'hardware-classes-list',
  `select c.kind, c.slug, c.name, c.tier, c.arch, c.cpu_models, coalesce(u.hosts, 0) as hosts
     from hardware_classes c
     left join (select e.kind, e.value ->> 'slug' as slug, count(*)::integer as hosts
                  from runners r cross join lateral jsonb_each(${HOST_CLASSES}) e(kind, value)
                 where r.forgotten_at is null group by e.kind, slug) u on u.kind = c.kind and u.slug = c.slug
    order by c.kind, c.arch, c.tier, c.slug`,
);
const COUNT = statement<{ n: number }>(
  'hardware-classes-count',
  'select count(*)::integer as n from hardware_classes where (kind, slug) <> ($1, $2)',
);
/** No row when the class has another architecture. $1..$6 */
const PUT = statement<{ slug: string }>(
  'hardware-class-put',
  `insert into hardware_classes as c (kind, slug, name, tier, arch, cpu_models) values ($1, $2, $3, $4, $5, $6)
   on conflict (kind, slug) do update set name = excluded.name, tier = excluded.tier, cpu_models = excluded.cpu_models
    where c.arch is not distinct from excluded.arch
   returning slug`,
);
/** $1 kind, $2 slug */
const USES = statement<{ hosts: number; sandboxes: number }>(
  'hardware-class-uses',
  `select (select count(*)::integer from runners r
            where r.forgotten_at is null and ${HOST_CLASSES} -> $1 ->> 'slug' = $2) as hosts,
          (select count(*)::integer from sandbox_classes s where s.classes ->> $1 = $2) as sandboxes`,
);
const DELETE = statement<{ slug: string }>(
  'hardware-class-delete',
  'delete from hardware_classes where kind = $1 and slug = $2 returning slug',
);

export async function listClasses(on: Queryable): Promise<HardwareClass[]> {
  return (await queryAll(on, LIST)).map(({ arch, ...row }) => ({
    ...row,
    ...(arch === null ? {} : { arch }),
  }));
}

/** Defines a class, or replaces its definition. @throws 400, 409 */
export async function putClass(
  { pool }: Database,
  kind: ClassKind,
  slug: string,
  { name = slug, tier, arch, cpu_models = [] }: HardwareClassRequest,
): Promise<HardwareClass> {
  if (kind === 'cpu_type' && arch === undefined)
    throw badRequest('arch is required for a cpu_type: its tiers are counted per architecture');
  if (kind !== 'cpu_type' && (arch !== undefined || cpu_models.length > 0))
    throw badRequest(`arch and cpu_models are of cpu_type only, not of ${kind}`);
  const others = await queryOne(pool, COUNT, [kind, slug]);
  if ((others?.n ?? 0) >= HARDWARE_CLASSES_MAX)
    throw conflict(`there are ${HARDWARE_CLASSES_MAX} classes, which is the most allowed`, 'limit_reached');
  const written = await queryOne(pool, PUT, [kind, slug, name, tier, arch ?? null, cpu_models]);
  if (written === undefined)
    throw conflict(`${kind} ${quote(slug)} is of another architecture: define one with another slug`);
  const defined = (await listClasses(pool)).find((one) => one.kind === kind && one.slug === slug);
  if (defined === undefined)
    throw conflict(`${kind} ${quote(slug)} was deleted meanwhile`, 'concurrent_change');
  return defined;
}

/** @throws 404; 409 while a host has it, or a sandbox has asked for it */
export async function deleteClass({ pool }: Database, kind: ClassKind, slug: string): Promise<void> {
  const uses = await queryOne(pool, USES, [kind, slug]);
  const users = [counted(uses?.hosts, 'host'), counted(uses?.sandboxes, 'sandbox', 'es')].flat();
  if (users.length > 0)
    throw conflict(
      `${kind} ${quote(slug)} is used by ${users.join(' and ')}: give hosts another class, and delete the sandboxes that asked for it`,
      'in_use',
    );
  if ((await queryOne(pool, DELETE, [kind, slug])) === undefined)
    throw notFound(`${kind} ${quote(slug)} not found`, 'class_not_found');
}

function counted(n: number | undefined, what: string, plural = 's'): string[] {
  return n === undefined || n === 0 ? [] : [`${n} ${what}${n === 1 ? '' : plural}`];
}
