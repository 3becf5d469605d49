import assert from 'node:assert/strict';
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';
import { text } from 'node:stream/consumers';

const DEADLINE_MS = 120_000;
/** Logs when told to, flushes and ends, as a role does. */
const PROGRAM = `
  const { roleLogger } = await import(process.argv[1]);
  const { log, flush } = roleLogger('control', 'info', true);
  process.once('message', () => {
    for (let i = 0; i < 50; i++) log.info('line ' + i + ' ' + 'x'.repeat(1_000));
    flush();
    process.exit(7);
  });
  process.send('ready');
`;

async function loggingProcess(): Promise<ChildProcess> {
  const module = new URL('../src/log/role-logger.ts', import.meta.url).href;
  const child = fork('-e', [PROGRAM, module], {
    execArgv: ['--input-type=module'],
    stdio: ['ignore', 'pipe', 'inherit', 'ipc'],
  });
  // A process that does not end is a bug, and must not stay.
  const late = setTimeout(() => child.kill('SIGKILL'), DEADLINE_MS);
  child.once('exit', () => clearTimeout(late));
  await once(child, 'message', { signal: AbortSignal.timeout(DEADLINE_MS) });
  return child;
}

test('a process that ends writes its last lines first', async () => {
  const child = await loggingProcess();
  assert.ok(child.stdout !== null);
  const said = text(child.stdout);
  child.send('log');
  assert.deepEqual(await once(child, 'exit'), [7, null]);
  assert.equal((await said).trimEnd().split('\n').length, 50);
});

test('a process whose reader is gone ends all the same', async () => {
  const child = await loggingProcess();
  child.stdout?.destroy();
  child.send('log');
  assert.deepEqual(await once(child, 'exit'), [7, null]);
});
