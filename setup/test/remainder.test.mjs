import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { foreground } from '../foreground.mjs';
import { Remainder } from '../remainder.mjs';

async function folderOf(t) {
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-setup-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

async function program(folder, text) {
  const file = path.join(folder, 'program.mjs');
  await writeFile(file, text);
  return file;
}

async function until(isTrue) {
  while (!(await isTrue())) await new Promise((done) => setTimeout(done, 20));
}

test('the rest of the set-up runs once the service has started, with the lowest priority', async (t) => {
  const folder = await folderOf(t);
  const seen = path.join(folder, 'seen');
  const rest = new Remainder(
    await program(
      folder,
      `import { writeFileSync } from 'node:fs';
       import { getPriority } from 'node:os';
       writeFileSync(${JSON.stringify(seen)}, String(getPriority()));`,
    ),
  );
  const ended = Promise.withResolvers();
  // A service that was not started says nothing; one that has may say it again.
  const service =
    "process.send({ type: 'linked' }); for (const _ of '12') process.send({ type: 'started' });";
  let starts = 0;
  const code = await foreground(
    process.execPath,
    ['-e', `${service} setTimeout(() => process.exit(3), 100)`],
    {},
    () => {
      starts += 1;
      ended.resolve(rest.start());
    },
  );
  assert.equal(code, 3);
  assert.equal(await ended.promise, 0);
  assert.equal(starts, 1);
  assert.equal(await readFile(seen, 'utf8'), '19');
});

test('a set-up that fails leaves the service alone; the end of the service ends it with all its tools', async (t) => {
  const folder = await folderOf(t);
  assert.equal(await new Remainder(await program(folder, 'process.exit(1)')).start(), 1);
  const pidFile = path.join(folder, 'pid');
  const rest = new Remainder(
    await program(
      folder,
      `import { spawn } from 'node:child_process';
       import { renameSync, writeFileSync } from 'node:fs';
       const { pid } = spawn('sleep', ['100000']);
       writeFileSync(${JSON.stringify(`${pidFile}.new`)}, String(pid));
       renameSync(${JSON.stringify(`${pidFile}.new`)}, ${JSON.stringify(pidFile)});`,
    ),
  );
  const ended = rest.start();
  await until(() => existsSync(pidFile));
  const pid = await readFile(pidFile, 'utf8');
  rest.stop();
  assert.equal(await ended, null);
  await until(async () => {
    const state = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => ') Z ');
    return state.includes(') Z ');
  });
  rest.stop();
});
