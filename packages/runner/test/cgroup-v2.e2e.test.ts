import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { cp, mkdir, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { after, before, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { TestRunner } from './support/sandboxes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const ID = '51111111-2222-4333-8444-555555555555';
const PACKAGE = fileURLToPath(new URL('..', import.meta.url));
const FILES = ['src/cgroup', 'src/process', 'test/cgroup-tree.unit.test.ts'];

let folder: string;
let runner: TestRunner;
before(async () => {
  folder = await temporaryFolder('releap-c2-');
  runner = await TestRunner.open(join(folder, 'home'));
});
after(async () => {
  await runner.dispose();
  await rm(folder, { recursive: true, force: true });
});

/** The tests of cgroups with a Node to run them, as they lie in the guest. */
async function stage(): Promise<string> {
  const root = join(folder, 'root');
  await mkdir(join(root, 'runner'), { recursive: true });
  await writeFile(join(root, 'runner/package.json'), '{"type":"module"}');
  for (const file of FILES) await cp(join(PACKAGE, file), join(root, 'runner', file), { recursive: true });
  const libraries = execFileSync('ldd', [process.execPath], { encoding: 'utf8' }).matchAll(
    /(?:=> |^\s+)(\/\S+)/gm,
  );
  const programs = [
    [process.execPath, '/usr/bin/node'],
    ...[...libraries].map(([, path = '']) => [path, path]),
  ];
  for (const [from = '', to = ''] of programs) {
    await mkdir(dirname(join(root, to)), { recursive: true });
    await cp(from, join(root, to), { dereference: true });
  }
  return root;
}

async function copyIn(root: string): Promise<void> {
  const guest = await runner.reconciler.get(ID)?.live?.guest();
  assert.ok(guest);
  const unpack = guest.exec({ shell: 'tar -x -C /', stdin: true });
  const tar = spawn('tar', ['-C', root, '-c', '.'], { stdio: ['ignore', 'pipe', 'inherit'] });
  unpack.stdout.resume();
  unpack.stderr.resume();
  const copied = pipeline(tar.stdout, unpack.stdin).then(() => unpack.exit);
  assert.equal((await runner.explained(ID, copied)).exitCode, 0);
}

it('the tests of cgroups pass under version 2, in a guest whose kernel has nothing else', async () => {
  runner.want(ID, 1, 'running');
  await runner.reported(1, 'running');
  assert.match(
    await runner.sh(ID, 'grep cgroup /proc/mounts'),
    /^cgroup2 \/sys\/fs\/cgroup cgroup2 \S+ 0 0\n$/,
  );
  await copyIn(await stage());
  const output = await runner.sh(ID, 'cd /runner && node --test-reporter=tap test/cgroup-tree.unit.test.ts');
  assert.match(output, /^# fail 0$/m);
  assert.match(output, /^ +ok \d+ - kill what takes more memory than it may$/m);
  assert.match(output, /^ +ok \d+ - hold a process to its limits/m);
});
