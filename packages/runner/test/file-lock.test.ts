import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { lockFile } from '../src/lock/file-lock.ts';
import { ProcessError } from '../src/process/index.ts';

const MODULE = new URL('../src/lock/file-lock.ts', import.meta.url).href;
let folder: string;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'releap-lock-'));
});
after(async () => {
  await rm(folder, { recursive: true, force: true });
});

test('one holder at a time; the next gets the lock when it is released', async () => {
  const file = join(folder, 'turn');
  const first = await lockFile(file, { wait: true });
  assert.equal(await lockFile(file, { wait: false }), undefined);
  let isReleased = false;
  const second = lockFile(file, { wait: true }).then((lock) => {
    assert.ok(isReleased);
    return lock;
  });
  isReleased = true;
  await first.release();
  await first.release();
  await (await second).release();
  await using again = await lockFile(file, { wait: false });
  assert.ok(again);
});

test('waiting can be cancelled, and leaves the lock to others', async () => {
  const file = join(folder, 'cancelled');
  const first = await lockFile(file, { wait: true });
  const cancel = new AbortController();
  const waiting = lockFile(file, { wait: true, signal: cancel.signal });
  cancel.abort();
  await assert.rejects(waiting, (error) => error instanceof ProcessError && error.failure === 'aborted');
  await first.release();
  await using again = await lockFile(file, { wait: false });
  assert.ok(again);
});

test('the kernel releases the lock of a process that is killed', async () => {
  const file = join(folder, 'killed');
  const script = `
    const { lockFile } = await import(${JSON.stringify(MODULE)});
    await lockFile(${JSON.stringify(file)}, { wait: true });
    console.log('held');
    setInterval(() => undefined, 1000);`;
  const holder = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(holder.stdout, 'data');
  assert.equal(await lockFile(file, { wait: false }), undefined);
  holder.kill('SIGKILL');
  await using lock = await lockFile(file, { wait: true });
  assert.ok(lock);
});

test('a file that cannot be opened is named', async () => {
  await assert.rejects(lockFile(join(folder, 'none', 'lock'), { wait: true }), /ENOENT.*none/);
});
