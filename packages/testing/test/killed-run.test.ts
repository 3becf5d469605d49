/** What a run of tests leaves when it is killed, and what the next one does about it. */
import assert from 'node:assert/strict';
import { execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, rmSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { homeTag } from '@releap/testing/leftovers';
import { startTestPostgres } from '@releap/testing/postgres-instance';
import { TMPFS } from '@releap/testing/postgres-leftovers';
import { processStatus } from '@releap/testing/processes';
import { removeDeadRuns, removeRun, RUN_VARIABLE } from '@releap/testing/run/remove-leftovers';
import { makeRunFolder } from '@releap/testing/run/run-folder';
import { ownerLives, ownerOf, ownOwner } from '@releap/testing/run/run-owner';
import { until } from '@releap/testing/eventually';

const MAIN = path.resolve(import.meta.dirname, '../src/run/main.ts');
const CGROUPS = ['/sys/fs/cgroup/pids', '/sys/fs/cgroup'].find((folder) => existsSync(folder)) ?? '';

let folder: string;
let outer: string | undefined;
before(async () => {
  // Runs of other tests on this machine are not looked at.
  folder = await mkdtemp(path.join(tmpdir(), 'kr-'));
  outer = process.env['TMPDIR'];
  process.env['TMPDIR'] = folder;
});
after(async () => {
  if (outer === undefined) delete process.env['TMPDIR'];
  else process.env['TMPDIR'] = outer;
  await rm(folder, { recursive: true, force: true });
});

/** What there is of a service with this home. */
async function traces(home: string): Promise<string[]> {
  const tag = homeTag(home);
  const cgroups = (await readdir(CGROUPS)).filter((name) => name.includes(tag));
  const namespaces = execFileSync('ip', ['netns', 'list'], { encoding: 'utf8' }).split('\n');
  return [...cgroups, ...namespaces.filter((line) => line.includes(tag))];
}

/** Leaves what a service of a run leaves that is killed: a process in a cgroup, a network namespace, a home. */
async function leave(run: { path: string; owner: string }): Promise<{ home: string; child: ChildProcess }> {
  const home = path.join(run.path, 'releap-test-x/home');
  await mkdir(home, { recursive: true });
  await leaveKernelObjects(home);
  const child = spawn('sleep', ['1000'], { env: { [RUN_VARIABLE]: run.owner } });
  await once(child, 'spawn');
  return { home, child };
}

async function leaveKernelObjects(home: string): Promise<void> {
  const tag = homeTag(home);
  await mkdir(path.join(CGROUPS, `releap-${tag}0000/vm`), { recursive: true });
  execFileSync('ip', ['netns', 'add', `rl${tag}-0`]);
}

test('an owner is one process, not its number', async () => {
  assert.ok(ownerLives(ownOwner()));
  assert.equal(ownerLives(ownOwner().replace(/\d+$/, '1')), false, 'another process with this number');
  const child = spawn('true');
  const owner = ownerOf(child.pid ?? 0) ?? '';
  await once(child, 'exit');
  assert.equal(ownerLives(owner), false);
});

test('what killed runs have left is removed, and what a living one has stays', async () => {
  const living = await makeRunFolder();
  const kept = await leave(living);
  // The same of a run whose process is no more.
  const dead = { path: path.join(folder, 'rt-dead'), owner: '1-1' };
  await mkdir(dead.path);
  execFileSync('sh', ['-c', `printf ${dead.owner} > ${dead.path}/owner`]);
  const left = await leave(dead);
  const ended = once(left.child, 'exit');
  assert.equal((await traces(left.home)).length, 2);
  await removeDeadRuns();
  await ended;
  await until(async () => (await traces(left.home)).length === 0);
  assert.ok(!existsSync(dead.path));
  assert.equal((await traces(kept.home)).length, 2);
  assert.notEqual(await processStatus(kept.child.pid ?? 0), undefined);
  // Of this test alone: now its process is none either.
  execFileSync('sh', ['-c', `printf 1-2 > ${living.path}/owner`]);
  kept.child.kill('SIGKILL');
  await removeDeadRuns();
  await until(async () => (await traces(kept.home)).length === 0);
  assert.deepEqual(await readdir(folder), []);
});

test('what a service has left is removed although its home is removed when it is killed', async () => {
  const run = { path: await mkdtemp(path.join(folder, 'rt-')), owner: 'of-a-test' };
  const { home, child } = await leave(run);
  child.once('exit', () => rmSync(home, { recursive: true }));
  await removeRun(run);
  assert.deepEqual(await traces(home), []);
});

test('a file that is run alone is a run: it leaves nothing, and when it is killed the next run removes the rest', async () => {
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => name !== RUN_VARIABLE));
  const module = JSON.stringify(import.meta.resolve('@releap/testing/temporary-folder'));
  const alone = (then: string): ChildProcess => {
    const script = `
      const { temporaryFolder } = await import(${module});
      const { rmSync } = await import('node:fs');
      const folder = await temporaryFolder('releap-x-');
      console.log(folder);
      ${then}`;
    return spawn(process.execPath, ['--input-type=module', '-e', script], {
      stdio: ['ignore', 'pipe', 'inherit'],
      env,
    });
  };
  const clean = alone('rmSync(folder, { recursive: true });');
  assert.deepEqual(await once(clean, 'exit'), [0, null]);
  assert.deepEqual(await readdir(folder), []);

  const killed = alone('setInterval(() => {}, 1000);');
  const [line] = (await once(killed.stdout ?? killed, 'data')) as [Buffer];
  const home = line.toString().trim();
  assert.ok(home.startsWith(`${folder}/rt-`), home);
  await leaveKernelObjects(home);
  await removeDeadRuns();
  assert.equal((await traces(home)).length, 2);
  killed.kill('SIGKILL');
  await once(killed, 'exit');
  await removeDeadRuns();
  await until(async () => (await traces(home)).length === 0);
  assert.deepEqual(await readdir(folder), []);
});

test('a network namespace of a test whose process is no more is removed', async () => {
  const child = spawn('true');
  await once(child, 'exit');
  const [dead, living] = [`t${child.pid}-inet`, `t${process.pid}-inet`];
  for (const name of [dead, living]) execFileSync('ip', ['netns', 'add', name]);
  try {
    await removeDeadRuns();
    const namespaces = execFileSync('ip', ['netns', 'list'], { encoding: 'utf8' });
    assert.ok(!namespaces.includes(dead));
    assert.ok(namespaces.includes(living));
  } finally {
    execFileSync('ip', ['netns', 'delete', living]);
  }
});

test('a PostgreSQL server of a process that was killed is ended, and its folder removed', async () => {
  const script = `
    const { startTestPostgres } = await import(${JSON.stringify(import.meta.resolve('@releap/testing/postgres-instance'))});
    await startTestPostgres();
    process.kill(process.pid, 'SIGKILL');`;
  await using own = await startTestPostgres();
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: 'ignore' });
  const owner = ownerOf(child.pid ?? 0) ?? '';
  const [, signal] = (await once(child, 'exit')) as [number | null, string | null];
  assert.equal(signal, 'SIGKILL');
  const folders = async (one: string): Promise<string[]> =>
    [...(await readdir(TMPFS)), ...(await readdir(folder))].filter((name) =>
      name.startsWith(`releap-pg-${one}-`),
    );
  assert.equal((await folders(owner)).length, 1);
  await removeDeadRuns();
  assert.deepEqual(await folders(owner), []);
  assert.equal((await folders(ownOwner())).length, 1, own.url('postgres'));
});

for (const signal of ['SIGTERM', 'SIGINT'] as const)
  test(`a run that is ended by ${signal} leaves nothing`, async () => {
    const args = [MAIN, 'packages/control/test/tasks.test.ts'];
    const run = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
    let output = '';
    run.stdout.on('data', (chunk: Buffer) => (output += chunk.toString()));
    const owner = ownerOf(run.pid ?? 0) ?? '';
    /** Its folder, and that of its PostgreSQL, which is in there where the folder in memory has too little space. */
    const left = async (): Promise<string[]> => {
      const runs = await readdir(folder);
      const inside = await Promise.all(runs.map((name) => readdir(path.join(folder, name)).catch(() => [])));
      const others = [...(await readdir(TMPFS)), ...inside.flat()];
      return [...runs, ...others.filter((name) => name.startsWith(`releap-pg-${owner}-`))];
    };
    await until(async () => (await left()).length > 1);
    run.kill(signal);
    const [code] = (await once(run, 'close')) as [number];
    assert.equal(code, 130);
    assert.match(output, /interrupted/);
    assert.deepEqual(await left(), []);
  });
