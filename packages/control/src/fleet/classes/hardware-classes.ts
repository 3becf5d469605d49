/** The classes of hardware that the operator has defined, and what the creates of sandboxes ask for. */
import {
  badRequest,
  CLASS_KINDS,
  quote,
  type ClassKind,
  type CpuArch,
  type ResolvedSandbox,
} from '@releap/contract';
import { queryAll, statement, type Database } from '@releap/database';

export interface HardwareClassRow {
  kind: ClassKind;
  slug: string;
  name: string;
  tier: number;
  /** Of CPU types only. */
  arch: CpuArch | null;
}

/** What a sandbox asks for at least, by kind. `tier` is null when the class was deleted: no host has it. */
export type WantedClasses = Partial<Record<ClassKind, { slug: string; tier: number | null }>>;

export interface HardwareClasses {
  ofKind(kind: ClassKind): Promise<HardwareClassRow[]>;
  /**
   * The classes that a create asks for. `cpu_type` implies the architecture.
   * @throws 400 for an unknown slug, and for a `cpu_type` of another architecture than `cpu_arch`
   */
  resolve(
    asked: Pick<ResolvedSandbox, ClassKind | 'cpu_arch'>,
  ): Promise<{ cpu_arch: CpuArch | null; wanted: WantedClasses }>;
}

const ALL = statement<HardwareClassRow>(
  'hardware-classes-all',
  'select kind, slug, name, tier, arch from hardware_classes order by kind, arch, tier, slug',
);
const CACHE_MS = 1_000;

export function createHardwareClasses(database: Database): HardwareClasses {
  let cached: { at: number; rows: HardwareClassRow[] } | undefined;

  async function load(): Promise<HardwareClassRow[]> {
    const rows = await queryAll(database.pool, ALL);
    cached = { at: performance.now(), rows };
    return rows;
  }

  const read = async (): Promise<HardwareClassRow[]> =>
    cached !== undefined && performance.now() - cached.at < CACHE_MS ? cached.rows : await load();

  const ofKind = (rows: readonly HardwareClassRow[], kind: ClassKind): HardwareClassRow[] =>
    rows.filter((row) => row.kind === kind);

  async function find(kind: ClassKind, slug: string): Promise<HardwareClassRow> {
    const is = (row: HardwareClassRow): boolean => row.kind === kind && row.slug === slug;
    // One that is not cached may be new.
    const found = (await read()).find(is) ?? (await load()).find(is);
    if (found !== undefined) return found;
    const slugs = ofKind(await read(), kind).map((row) => quote(row.slug));
    throw badRequest(
      `${kind} ${quote(slug)} is unknown: ${slugs.length === 0 ? 'this installation has none, leave it out' : `use ${slugs.join(' or ')}`}`,
    );
  }

  return {
    ofKind: async (kind) => ofKind(await read(), kind),
    async resolve(asked) {
      const wanted: WantedClasses = {};
      let { cpu_arch } = asked;
      for (const kind of CLASS_KINDS) {
        const slug = asked[kind];
        if (slug === null) continue;
        const { tier, arch } = await find(kind, slug);
        if (arch !== null && cpu_arch !== null && arch !== cpu_arch)
          throw badRequest(
            `${kind} ${quote(slug)} is of the architecture ${quote(arch)}, which contradicts cpu_arch ${quote(cpu_arch)}`,
          );
        cpu_arch = arch ?? cpu_arch;
        wanted[kind] = { slug, tier };
      }
      return { cpu_arch, wanted };
    },
  };
}
