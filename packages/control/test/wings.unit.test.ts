import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { mayUse, wingOf, WINGS } from './support/wings.ts';

const SOURCE = path.resolve(import.meta.dirname, '../src');

test('each wing of the control plane imports only itself and the wings below it', () => {
  const files = globSync('**/*.ts', { cwd: SOURCE });
  const wings = new Set(files.filter((file) => file.includes('/')).map(wingOf));
  assert.deepEqual([...wings].toSorted(), WINGS.toSorted(), 'a folder that is no wing');
  const upward = files
    .filter((file) => file.includes('/'))
    .flatMap((file) =>
      importsOf(file)
        .filter((target) => !mayUse(wingOf(file), wingOf(target)))
        .map((target) => `${file} imports ${target}`),
    );
  assert.deepEqual(upward, []);
});

/** Relative to the source folder. */
function importsOf(file: string): string[] {
  const text = readFileSync(path.join(SOURCE, file), 'utf8');
  return [...text.matchAll(/(?:from|import\()\s*'(\.[^']+)'/g)].map(([, target = '']) =>
    path.join(path.dirname(file), target),
  );
}
