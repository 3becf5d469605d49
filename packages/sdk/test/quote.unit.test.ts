import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { propertyRuns } from '@releap/testing/repetitions';
import * as fc from 'fast-check';
import { quoteForShell } from '../src/index.ts';

test('a quoted word is one word for a shell, whatever is in it', () => {
  const words = fc.array(
    fc.string({ unit: 'binary' }).map((text) => text.replaceAll('\0', '')),
    { minLength: 1, maxLength: 5 },
  );
  fc.assert(
    fc.property(words, (all) => {
      const script = `printf '%s\\n--\\n' ${all.map(quoteForShell).join(' ')}`;
      const { stdout } = spawnSync('/bin/sh', ['-c', script], { encoding: 'utf8' });
      assert.equal(stdout, all.map((word) => `${word.toWellFormed()}\n--\n`).join(''));
    }),
    { numRuns: propertyRuns(40) },
  );
});
