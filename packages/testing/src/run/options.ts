/** The arguments of `npm test`. */
import { parseArgs } from 'node:util';
import { KVM_FILES, KVM_MACHINE_FILE } from './kvm-files.ts';
import { TIERS, type Tier } from './tiers.ts';

export interface RunOptions {
  /** Chosen tiers; undefined for all. */
  tiers: ReadonlySet<Tier> | undefined;
  /** Parts of paths that begin with `./`; a file is run when one of them fits, or when there are none. */
  patterns: string[];
  /** Report the processor time by file and by kind of process. */
  cpu: boolean;
  /** Test files at a time; undefined for what the processors can take. */
  jobs: number | undefined;
  /** The files that are for KVM, here and then in the machine with KVM; `always` also where KVM works here. */
  kvm: boolean | 'always';
}

export class UsageError extends Error {}

export function readOptions(args: string[]): RunOptions {
  let parsed;
  try {
    parsed = parseArgs({
      args,
      options: {
        tier: { type: 'string', multiple: true },
        cpu: { type: 'boolean', default: false },
        jobs: { type: 'string' },
        kvm: { type: 'boolean', default: false },
        always: { type: 'boolean', default: false },
      },
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
  const { cpu, jobs, kvm, always } = parsed.values;
  if (jobs !== undefined && !/^[1-9]\d*$/.test(jobs))
    throw new UsageError(`--jobs ${jobs}: give a number from 1`);
  return {
    tiers: tiers.length === 0 ? undefined : new Set(tiers),
    patterns: kvm ? [...KVM_FILES, KVM_MACHINE_FILE].map((file) => `./${file}`) : parsed.positionals,
    cpu,
    jobs: jobs === undefined ? undefined : Number(jobs),
    kvm: kvm && always ? 'always' : kvm,
  };
}
