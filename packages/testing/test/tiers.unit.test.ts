import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { listTestFiles } from '@releap/testing/run/files';
import { TIERS, tierOf, type Tier } from '@releap/testing/run/tiers';

const REPOSITORY = path.resolve(import.meta.dirname, '../../..');

/** Support files that only tests of these tiers may import, directly or through other support files. */
const RESERVED: readonly (readonly [RegExp, readonly Tier[]])[] = [
  [/^packages\/testing\/src\/postgres-instance\.ts$/, ['integration', 'e2e']],
  [/^packages\/testing\/src\/registry\.ts$/, ['integration', 'e2e']],
  [/^packages\/testing\/src\/service\.ts$/, ['e2e']],
  [/^packages\/runner\/test\/support\/machines\.ts$/, ['e2e']],
];

/** Support files that a test file imports, directly or not; paths relative to the repository. */
function supportOf(file: string, found = new Set<string>()): Set<string> {
  const text = readFileSync(path.join(REPOSITORY, file), 'utf8');
  for (const [, clause = '', specifier = ''] of text.matchAll(
    /^(?:import|\}|export)([^'\n]*)'([^']+)';$/gm,
  )) {
    if (clause.startsWith(' type ')) continue;
    const shared = /^@releap\/testing\/(.+)$/.exec(specifier)?.[1];
    const target =
      shared === undefined ? path.join(path.dirname(file), specifier) : `packages/testing/src/${shared}.ts`;
    const isSupport = specifier.startsWith('.')
      ? /(^|\/)test\/|packages\/testing\//.test(target)
      : shared !== undefined;
    if (!isSupport || found.has(target) || !existsSync(path.join(REPOSITORY, target))) continue;
    found.add(target);
    supportOf(target, found);
  }
  return found;
}

test('every test file belongs to exactly one tier, and every tier has files', async () => {
  const files = await listTestFiles(REPOSITORY);
  const tiers = new Set(files.map((file) => tierOf(file)));
  assert.deepEqual([...tiers].toSorted(), TIERS.toSorted());
});

test('a name outside the convention is refused', () => {
  assert.throws(() => tierOf('packages/cli/test/a.slow.test.ts'), /'\.slow' is no tier/);
  assert.throws(() => tierOf('docs/a.test.ts'), /no folder of tests/);
});

test('no test file needs more of the machine than its tier has', async () => {
  const wrong = (await listTestFiles(REPOSITORY)).flatMap((file) => {
    const support = [...supportOf(file)];
    return RESERVED.filter(
      ([reserved, tiers]) => support.some((one) => reserved.test(one)) && !tiers.includes(tierOf(file)),
    ).map(
      ([reserved, tiers]) =>
        `${file} is ${tierOf(file)} and imports ${reserved.source}: only ${tiers.join(', ')} may`,
    );
  });
  assert.deepEqual(wrong, []);
});

test('no test imports the test folder of another package', async () => {
  const wrong = (await listTestFiles(REPOSITORY)).flatMap((file) => {
    const own = /^(packages\/[^/]+\/|setup\/|test\/)/.exec(file)?.[1] ?? '';
    return [...supportOf(file)]
      .filter((support) => !support.startsWith(own) && !support.startsWith('packages/testing/src/'))
      .map((support) => `${file} → ${support}`);
  });
  assert.deepEqual(wrong, []);
});

test('the list of slow files names files that exist', async () => {
  const listed = JSON.parse(
    readFileSync(path.join(REPOSITORY, 'packages/testing/src/run/slow-files.json'), 'utf8'),
  ) as Record<string, number>;
  const files = new Set(await listTestFiles(REPOSITORY));
  assert.deepEqual(
    Object.keys(listed).filter((file) => !files.has(file)),
    [],
  );
});
