import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { bundlePackage } from '../bundle.mjs';
import { NODE } from '../setup.mjs';

test('a bundled package has the same exports, each module once, and is bundled once', async () => {
  const root = await mkdtemp(path.join(tmpdir(), 'releap-bundle-'));
  try {
    const folder = path.join(root, 'node_modules/small');
    await mkdir(path.join(folder, 'build/deep'), { recursive: true });
    const exports = {
      './deep': { import: './build/deep/index.mjs' },
      '.': { import: './build/index.mjs', default: './build/index.mjs' },
    };
    const files = {
      'package.json': JSON.stringify({ name: 'small', type: 'module', exports }),
      'build/index.mjs': "export * from './state.mjs'; export default 7;",
      'build/state.mjs': 'export const seen = [];',
      'build/deep/index.mjs':
        "import { seen } from '../state.mjs'; export const see = (it) => seen.push(it);",
    };
    for (const [name, text] of Object.entries(files)) await writeFile(path.join(folder, name), text);
    await bundlePackage(folder);
    await rm(path.join(folder, 'build/state.mjs'));
    const script = `import seven, { seen } from 'small'; import { see } from 'small/deep';
      see('it'); console.log(seven, seen.join());`;
    await writeFile(path.join(root, 'use.mjs'), script);
    assert.equal(execFileSync(NODE, [path.join(root, 'use.mjs')], { encoding: 'utf8' }), '7 it\n');

    const before = await readFile(path.join(folder, 'build/index.mjs'), 'utf8');
    await bundlePackage(folder);
    assert.equal(await readFile(path.join(folder, 'build/index.mjs'), 'utf8'), before);
    assert.deepEqual((await readdir(folder)).sort(), ['build', 'bundled', 'package.json']);
  } finally {
    await rm(root, { recursive: true });
  }
});
