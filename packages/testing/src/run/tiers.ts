/** Which tier a test file belongs to. CONTRIBUTING.md states the convention for people. */
export const TIERS = ['unit', 'integration', 'e2e'] as const;
export type Tier = (typeof TIERS)[number];

/** Folders whose files belong to a tier without saying so in their names. The first that fits counts. */
const FOLDERS: readonly (readonly [string, Tier])[] = [
  ['packages/contract/test/', 'unit'],
  ['packages/', 'integration'],
  ['setup/test/', 'integration'],
  ['test/', 'e2e'],
];

/** The tier in the name (`name.unit.test.ts`), or else that of the folder. */
export function tierOf(file: string): Tier {
  const named = /\.(\w+)\.test\.\w+$/.exec(file)?.[1];
  if (named !== undefined) {
    const tier = TIERS.find((tier) => tier === named);
    if (tier === undefined) throw new Error(`${file}: '.${named}' is no tier; tiers are ${TIERS.join(', ')}`);
    return tier;
  }
  const found = FOLDERS.find(([folder]) => file.startsWith(folder));
  if (found === undefined) throw new Error(`${file} lies in no folder of tests`);
  return found[1];
}
