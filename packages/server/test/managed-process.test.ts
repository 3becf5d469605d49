import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { quiet } from '@releap/testing/logging';
import { LogAggregator } from '../src/log/log-aggregator.ts';
import { ManagedProcess } from '../src/supervisor/managed-process.ts';

const DEADLINE_MS = 1_500;

async function managed(onStop: string): Promise<ManagedProcess> {
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-managed-'));
  const logs = new LogAggregator(folder, { level: 'error', fileBytes: 2 ** 20 });
  after(async () => {
    await logs.close();
    await rm(folder, { recursive: true, force: true });
  });
  const program = path.join(folder, 'program.mjs');
  await writeFile(
    program,
    `process.on('message', () => { ${onStop} }); process.send({ type: 'started', facts: {} });`,
  );
  const part = new ManagedProcess({ role: 'part', program, env: process.env, logs, log: quiet });
  await part.started;
  return part;
}

test('a stop is orderly though the machine stalled until after its deadline', async () => {
  const part = await managed('process.exit(0)');
  const stopped = part.stop(DEADLINE_MS);
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2 * DEADLINE_MS);
  assert.equal(await stopped, true);
});

test('a process that does not stop by its deadline is killed', async () => {
  const part = await managed('');
  assert.equal(await part.stop(DEADLINE_MS), false);
});
