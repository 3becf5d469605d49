/** Which test files there are, and in which order a run takes them. */
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import type { RunOptions } from './options.ts';
import { tierOf, type Tier } from './tiers.ts';

export interface TestFile {
  /** Relative to the repository. */
  path: string;
  tier: Tier;
  /** It uses the service of the run (`@releap/testing/shared-service`). */
  shared: boolean;
  /** What it took last time, or is thought to take. */
  expectedMs: number;
}

/** Milliseconds by path. */
export type Durations = Record<string, number>;

/** Measured by the last run on this machine. */
const MEASURED = 'build/test-durations.json';
/** Slow files of a machine with two cores, for the first run of a clone. */
const ESTIMATES = 'packages/testing/src/run/slow-files.json';
const SHARED_SERVICE = "from '@releap/testing/shared-service'";
const UNKNOWN_MS: Record<Tier, number> = { unit: 1_000, integration: 5_000, e2e: 20_000 };

/** All test files of the repository, sorted by path. */
export async function listTestFiles(repository: string): Promise<string[]> {
  const packages = await readdir(path.join(repository, 'packages'));
  const folders = [...packages.map((name) => `packages/${name}/test`), 'setup/test', 'test'];
  const lists = await Promise.all(
    folders.map(async (folder) => {
      const entries = await readdir(path.join(repository, folder), { recursive: true }).catch(() => []);
      return entries.filter((file) => /\.test\.(ts|mjs)$/.test(file)).map((file) => path.join(folder, file));
    }),
  );
  return lists.flat().sort((a, b) => (a < b ? -1 : 1));
}

/** The files of a run, those first that must not be left over for the end. */
export async function chooseFiles(repository: string, { tiers, patterns }: RunOptions): Promise<TestFile[]> {
  const expected = {
    ...(await durations(repository, ESTIMATES)),
    ...(await durations(repository, MEASURED)),
  };
  const chosen = (await listTestFiles(repository))
    .map((file) => ({ path: file, tier: tierOf(file) }))
    .filter(({ tier }) => tiers?.has(tier) ?? true)
    .filter(
      (file) => patterns.length === 0 || patterns.some((pattern) => `./${file.path}`.includes(pattern)),
    );
  const files = await Promise.all(
    chosen.map(async (file) => ({
      ...file,
      shared: (await readFile(path.join(repository, file.path), 'utf8')).includes(SHARED_SERVICE),
      expectedMs: expected[file.path] ?? UNKNOWN_MS[file.tier],
    })),
  );
  return inOrder(files);
}

/** Slowest first. Files of the shared service are run one after the other: each counts as much as all that follow it. */
export function inOrder(files: readonly TestFile[]): TestFile[] {
  const sorted = files.toSorted((a, b) => b.expectedMs - a.expectedMs);
  const weights = new Map<TestFile, number>();
  let following = 0;
  for (const file of sorted.toReversed()) {
    if (file.shared) following += file.expectedMs;
    weights.set(file, file.shared ? following : file.expectedMs);
  }
  return sorted.toSorted((a, b) => (weights.get(b) ?? 0) - (weights.get(a) ?? 0));
}

async function durations(repository: string, file: string): Promise<Durations> {
  const text = await readFile(path.join(repository, file), 'utf8').catch(() => '{}');
  return JSON.parse(text) as Durations;
}

/** Remembers what files took, for the order of the next run. */
export async function rememberDurations(repository: string, measured: Durations): Promise<void> {
  const all = { ...(await durations(repository, MEASURED)), ...measured };
  await mkdir(path.join(repository, 'build'), { recursive: true });
  await writeFile(path.join(repository, MEASURED), `${JSON.stringify(all, undefined, 1)}\n`);
}
