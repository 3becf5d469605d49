import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import { freePort } from '@releap/testing/ports';

const COUNT = 200;

test('a free port is given once, whichever process asks, and with the next ones', async () => {
  const module = JSON.stringify(import.meta.resolve('@releap/testing/ports'));
  const script = `
    const { freePort } = await import(${module});
    for (let n = 0; n < ${COUNT}; n++) console.log(await freePort());
    process.stdin.resume();`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const printed = text(child.stdout);
  const own: number[] = [];
  for (let n = 0; n < COUNT; n++) own.push(await freePort());
  child.stdin.end();
  const [code] = (await once(child, 'exit')) as [number | null];
  assert.equal(code, 0);
  const all = [...own, ...(await printed).trim().split('\n').map(Number)].toSorted((a, b) => a - b);
  assert.equal(all.length, 2 * COUNT);
  assert.ok(all.every((port, at) => port - (all[at - 1] ?? 0) > 5));
});
