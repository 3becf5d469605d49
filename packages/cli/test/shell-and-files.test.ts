import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { after, before, test } from 'node:test';
import { until } from '@releap/testing/eventually';
import { type MachineHost, startMachineHost } from '@releap/testing/machine-host';
import { runCli } from '../src/run-cli.ts';
import { newProject, type Project } from './world.ts';

let host: MachineHost;
let project: Project;
let folder: string;
before(async () => {
  host = await startMachineHost();
  project = await newProject(host.world);
  await project.create('web');
  folder = await mkdtemp(join(tmpdir(), 'rlp-shell-'));
});
after(async () => {
  await rm(folder, { recursive: true, force: true });
  await host[Symbol.asyncDispose]();
});

/** `rlp` on a terminal that the test types on. */
function onTerminal(args: readonly string[]) {
  const raw: boolean[] = [];
  const stdin = Object.assign(new PassThrough(), {
    isTTY: true as const,
    setRawMode: (mode: boolean) => raw.push(mode),
  });
  const stdout = Object.assign(new PassThrough(), { isTTY: true as const, columns: 90, rows: 33 });
  const stderr = new PassThrough().resume();
  const shown = { text: '' };
  stdout.on('data', (chunk: Buffer) => (shown.text += chunk.toString()));
  const env = { RELEAP_URL: project.url, RELEAP_API_KEY: project.key, RELEAP_HOME: '/nonexistent' };
  const terminal = { stdin, stdout, stderr, env } as unknown as Parameters<typeof runCli>[1];
  return { stdin, stdout, shown, raw, code: runCli(args, terminal, AbortSignal.timeout(120_000)) };
}

test('shell: a terminal continues when its user has detached, and its end has the exit code', async () => {
  const first = onTerminal(['shell', 'web']);
  first.stdin.write("X='of the first'; stty size\n");
  await until(async () => first.shown.text.includes('33 90'));
  first.stdin.write('\u001d');
  assert.equal(await first.code, 0);
  assert.deepEqual(first.raw, [true, false]);

  const second = onTerminal(['shell', 'web']);
  second.stdin.write('echo "is $X"\n');
  await until(async () => second.shown.text.includes('is of the first'));
  assert.ok(second.shown.text.includes('33 90'), 'the newest output is shown again');
  second.stdout.columns = 101;
  second.stdout.emit('resize');
  await until(async () => {
    second.stdin.write('stty size\n');
    return second.shown.text.includes('33 101');
  });
  second.stdin.write('exit 9\n');
  assert.equal(await second.code, 9);

  const other = onTerminal(['shell', 'web', '--name', 'other']);
  other.stdin.write('echo "is ${X:-new}"; exit\n');
  await until(async () => other.shown.text.includes('is new'));
  assert.equal(await other.code, 0);
  const refused = await project.rlp(['shell', 'web']);
  assert.equal(refused.code, 2);
  assert.match(refused.stderr, /needs a terminal/);
});

test('exec -t: the command has a terminal of this size, which follows, and this one is raw meanwhile', async () => {
  const running = onTerminal(['exec', '-t', 'web', '--', 'sh']);
  running.stdin.write('stty size\n');
  await until(async () => running.shown.text.includes('33 90'));
  assert.deepEqual(running.raw, [true]);
  running.stdout.rows = 34;
  running.stdout.emit('resize');
  await until(async () => {
    running.stdin.write('stty size\n');
    return running.shown.text.includes('34 90');
  });
  running.stdin.write('exit 9\n');
  assert.equal(await running.code, 9);
  assert.deepEqual(running.raw, [true, false]);
});

test('ls: names, details, one file, and what is not there', async () => {
  await mkdir(join(folder, 'tree/sub'), { recursive: true });
  await writeFile(join(folder, 'tree/a\u0007b'), '12345', { mode: 0o640 });
  const plain = await project.rlp(['ls', `web:${folder}/tree`]);
  assert.deepEqual(plain, { code: 0, stdout: 'a?b\nsub/\n', stderr: '' });
  const long = await project.rlp(['ls', '-l', `web:${folder}/tree`]);
  assert.match(long.stdout, /^MODE +OWNER.*\n-rw-r----- +0 +0 +5 B +\S+ +a\?b\ndrwx/);
  const one = await project.rlp(['ls', `web:${folder}/tree/a\u0007b`]);
  assert.equal(one.stdout, `${folder}/tree/a?b\n`);
  const json = JSON.parse((await project.rlp(['--json', 'ls', `web:${folder}/tree`])).stdout) as object[];
  assert.equal(json.length, 2);
  assert.equal((await project.rlp(['ls', `web:${folder}/none`])).code, 4);
  assert.equal((await project.rlp(['ls', folder])).code, 2);
  assert.equal((await project.rlp(['ls', 'web:'])).code, 0);
});

test('edit: what the editor leaves is written, and nothing when it changes nothing or fails', async () => {
  const file = join(folder, 'edited');
  const editor = async (script: string): Promise<string> => {
    const path = join(folder, `editor-${Math.random()}`);
    await writeFile(path, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
    return path;
  };
  const edit = async (script: string, path = file) =>
    project.rlp(['edit', `web:${path}`], { env: { EDITOR: await editor(script) } });
  await writeFile(file, 'one\n', { mode: 0o750 });
  assert.equal((await edit('echo two >> "$1"')).code, 0);
  assert.equal(await readFile(file, 'utf8'), 'one\ntwo\n');
  assert.equal((await edit('true')).code, 0);
  const failed = await edit('echo three >> "$1"; exit 3');
  assert.equal(failed.code, 1);
  assert.match(failed.stderr, /ended with 3: nothing was written/);
  assert.equal(await readFile(file, 'utf8'), 'one\ntwo\n');
  assert.equal((await edit('echo new > "$1"', join(folder, 'fresh'))).code, 0);
  assert.equal(await readFile(join(folder, 'fresh'), 'utf8'), 'new\n');
  assert.equal((await edit('true', folder)).code, 2);
  const kept = await edit('echo text > "$1"; rm -rf /proc/none', '/proc/sys/none/x');
  assert.equal(kept.code, 1);
  const [, local] = /your text is in (\S+)\)/.exec(kept.stderr) ?? [];
  assert.equal(await readFile(local ?? '', 'utf8'), 'text\n');
  await rm(join(local ?? '', '..'), { recursive: true });
  assert.deepEqual(
    (await readdir(tmpdir())).filter((name) => name.startsWith('rlp-edit-')),
    [],
  );
});
