/** The arguments of `npm test`. */
import { parseArgs } from 'node:util';
import { TIERS, type Tier } from './tiers.ts';

export interface RunOptions {
  /** Chosen tiers; undefined for all. */
  tiers: ReadonlySet<Tier> | undefined;
  /** Parts of paths; a file is run when one of them fits, or when there are none. */
  patterns: string[];
  /** Report the processor time by file and by kind of process. */
  cpu: boolean;
}

export class UsageError extends Error {}

export function readOptions(args: string[]): RunOptions {
  let parsed;
  try {
    parsed = parseArgs({
      args,
      options: { tier: { type: 'string', multiple: true }, cpu: { type: 'boolean', default: false } },
      allowPositionals: true,
    });
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
  const named = (parsed.values.tier ?? []).flatMap((value) => value.split(','));
  const tiers = named.map((name) => {
    const tier = TIERS.find((tier) => tier === name);
    if (tier === undefined) throw new UsageError(`no tier '${name}': choose of ${TIERS.join(', ')}`);
    return tier;
  });
  return {
    tiers: tiers.length === 0 ? undefined : new Set(tiers),
    patterns: parsed.positionals,
    cpu: parsed.values.cpu,
  };
}
