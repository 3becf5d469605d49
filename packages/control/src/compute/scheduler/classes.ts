/** Classes of hardware in placements: a sandbox asks for a tier, and is placed there or on a higher one. Pure. */
import { CLASS_KINDS, quote } from '@releap/contract';
import type { ClassesOfHost } from '../../fleet/classes/host-classes.ts';
import type { WantedClasses } from '../../fleet/classes/hardware-classes.ts';

/** Whether a host of the right architecture has these classes, or higher ones. */
export function hasClasses(wanted: WantedClasses, classes: ClassesOfHost): boolean {
  return CLASS_KINDS.every((kind) => {
    const asked = wanted[kind];
    return asked === undefined || (asked.tier !== null && (classes[kind]?.tier ?? 0) >= asked.tier);
  });
}

/** How many CPU tiers a host is above the one that is asked for; 0 also when none is. */
export function cpuTiersAbove({ cpu_type: asked }: WantedClasses, { cpu_type: has }: ClassesOfHost): number {
  return asked === undefined ? 0 : (has?.tier ?? 0) - (asked.tier ?? 0);
}

/** Why none of these hosts has the classes; the end of a sentence about "no host". */
export function lackingClasses(wanted: WantedClasses, hosts: readonly ClassesOfHost[]): string {
  const kinds = CLASS_KINDS.filter((kind) => wanted[kind] !== undefined);
  const asked = kinds.map((kind) => {
    const { slug, tier = null } = wanted[kind] ?? {};
    return `${kind} ${quote(slug)}${tier === null ? ', which was deleted' : ` (tier ${tier}) or a higher one`}`;
  });
  const available = kinds.map((kind) => `${kind} ${shown(hosts.flatMap((host) => host[kind] ?? []))}`);
  return `has ${asked.join(' and ')} (available: ${available.join('; ')})`;
}

function shown(classes: readonly { slug: string; tier: number }[]): string {
  const distinct = new Map(classes.map(({ slug, tier }) => [slug, tier]));
  const texts = [...distinct]
    .toSorted(([, a], [, b]) => a - b)
    .map(([slug, tier]) => `${quote(slug)} (tier ${tier})`);
  return texts.length === 0 ? 'none' : texts.join(', ');
}
