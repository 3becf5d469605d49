import assert from 'node:assert/strict';
import { mkdtemp, rm, utimes } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { BuildLog } from '../src/logs/build-log.ts';
import { LogFile, LOG_FILE_MAX_BYTES, readLog } from '../src/logs/log-file.ts';
import { tidy } from '../src/logs/log-retention.ts';

let folder: string;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'releap-log-'));
});
after(async () => {
  await rm(folder, { recursive: true, force: true });
});

test('a log keeps at most two files, for any amount of output', async () => {
  const log = new LogFile(join(folder, 'big', 'console.log'));
  for (let i = 0; i < 40; i++) {
    log.write(Buffer.alloc(LOG_FILE_MAX_BYTES / 8, 'a'));
    await log.flush();
  }
  log.write(Buffer.from('the end'));
  await log.close();
  const kept = await readLog(log.path);
  assert.ok(kept !== undefined && kept.length <= 2 * LOG_FILE_MAX_BYTES + 7, String(kept?.length));
  assert.equal(kept.subarray(-7).toString(), 'the end');
});

test('what is printed faster than stored is dropped, and the drop is marked', async () => {
  const log = new LogFile(join(folder, 'fast', 'console.log'));
  for (let i = 0; i < 64; i++) log.write(Buffer.alloc(256 * 1024, 'b'));
  await log.flush();
  log.write(Buffer.from('later'));
  await log.close();
  assert.match(String((await readLog(log.path))?.subarray(-200).toString()), /bytes dropped.*\nlater$/s);
});

test('a follower gets every byte once, also those written while it starts', async () => {
  const log = new LogFile(join(folder, 'follow', 'console.log'));
  log.write(Buffer.from('1'));
  let seen = '';
  let ended = false;
  const following = log.follow(
    (chunk) => (seen += chunk.toString()),
    () => (ended = true),
  );
  log.write(Buffer.from('2'));
  const { kept } = await following;
  assert.equal(seen, '', 'the caller gets what is kept before the rest');
  log.write(Buffer.from('3'));
  await log.close();
  assert.equal(kept.toString() + seen, '123');
  assert.ok(ended);
});

test('a log is read whole while it is rotated', async () => {
  const log = new LogFile(join(folder, 'rotating', 'console.log'), 1000);
  let number = 0;
  const stop = new AbortController();
  const writing = (async () => {
    while (!stop.signal.aborted) {
      log.write(Buffer.from(`${String(number++).padStart(9, '0')}\n`.repeat(10)));
      await log.flush();
    }
  })();
  try {
    for (let reads = 0; reads < 200; reads++) {
      const kept = String((await readLog(log.path)) ?? '');
      const chunks = kept.match(/(\d{9}\n)\1{9}/g) ?? [];
      for (const [i, chunk] of chunks.entries()) {
        assert.equal(
          Number(chunk.slice(0, 9)),
          Number(chunks[0]?.slice(0, 9)) + i,
          'in order, and none left out',
        );
      }
    }
  } finally {
    stop.abort();
    await writing;
    await log.close();
  }
});

test('a missing log is told apart from an empty one', async () => {
  assert.equal(await readLog(join(folder, 'none', 'console.log')), undefined);
  const log = new LogFile(join(folder, 'empty', 'console.log'));
  log.write(Buffer.alloc(0));
  await log.close();
  assert.equal((await readLog(log.path))?.length, 0);
});

test('logs of sandboxes that ended go by age and number, those of live ones stay', async () => {
  const logs = join(folder, 'tidy');
  for (const [vm, hoursAgo] of Object.entries({ live: 9, old: 9, newer: 2, newest: 1 })) {
    const log = new LogFile(join(logs, vm, 'console.log'));
    log.write(Buffer.from(vm));
    await log.close();
    const at = new Date(Date.now() - hoursAgo * 3_600_000);
    await utimes(join(logs, vm), at, at);
  }
  const removed = await tidy(logs, (vmId) => vmId === 'live', { keepMs: 8 * 3_600_000, keepSandboxes: 1 });
  assert.deepEqual(removed.sort(), ['newer', 'old']);
});

test('the log of a build is stored up to its bound, with a note, and its end is known all the same', async () => {
  const log = new BuildLog(join(folder, 'build', 'build.log'), 10);
  log.write(Buffer.from('12345'));
  log.write(Buffer.from('67890abc\n'));
  log.write(Buffer.from('the last line\n'));
  await log.close();
  const stored = String(await readLog(log.file.path));
  assert.match(stored, /^1234567890\n\[releap: the log is full[^\n]+\n$/);
  assert.equal(log.tail, '1234567890abc\nthe last line\n');
});

test('the end of a build log has a bound, and only whole characters', async () => {
  const log = new BuildLog(join(folder, 'build-tail', 'build.log'));
  log.write(Buffer.from('ä'.repeat(10_000)));
  log.write(Buffer.from('x'));
  await log.close();
  assert.match(log.tail, /^ä+x$/);
  assert.ok(Buffer.byteLength(log.tail) <= 8192);
});
