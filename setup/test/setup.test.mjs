import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { architectureOf } from '../../packages/contract/src/rules/resources/architecture.ts';
import { alone } from '../alone.mjs';
import { ARCHITECTURE, ARCHITECTURES } from '../architecture.mjs';
import { findCommand, run, SetupError } from '../command.mjs';
import {
  BENCH_PACKAGES,
  GO_PACKAGE,
  kernelSource,
  PACKAGES,
  TEST_PACKAGES,
  VOLUME_PACKAGES,
} from '../packages.mjs';
import { servesVolumes } from '../kernel.mjs';
import { packProgram } from '../linked-program.mjs';
import { isNewEnough } from '../qemu.mjs';
import { isCheckDue } from '../unpacked.mjs';

test('a set-up with nothing to do prints nothing', async () => {
  const program = path.resolve(import.meta.dirname, '../setup.mjs');
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [program]);
  assert.equal(stdout + stderr, '');
});

test('two set-ups of one folder take turns', async () => {
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-setup-'));
  after(() => rm(folder, { recursive: true, force: true }));
  const lock = path.join(folder, 'lock');
  let inside = 0;
  const turns = [1, 2, 3].map((turn) =>
    alone(lock, async () => {
      inside += 1;
      assert.equal(inside, 1);
      await new Promise((done) => setTimeout(done, 20));
      inside -= 1;
      return turn;
    }),
  );
  assert.deepEqual(await Promise.all(turns), [1, 2, 3]);
});

test('a lock is released when the work under it fails', async () => {
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-setup-'));
  after(() => rm(folder, { recursive: true, force: true }));
  const lock = path.join(folder, 'lock');
  await assert.rejects(
    alone(lock, () => Promise.reject(new Error('no'))),
    /^Error: no$/,
  );
  assert.equal(await alone(lock, () => Promise.resolve('yes')), 'yes');
});

test('a tool that fails is named, with the end of its output', async () => {
  await assert.rejects(run('sh', ['-c', 'echo first; echo the reason >&2; exit 7']), (error) => {
    assert.ok(error instanceof SetupError);
    assert.match(error.message, /'sh .*' failed \(7\):\nfirst\nthe reason/);
    return true;
  });
  await assert.rejects(run('no-such-tool-at-all', []), /no-such-tool-at-all/);
});

test("root's tools are found with any PATH", async () => {
  const path = process.env.PATH;
  process.env.PATH = '/nowhere';
  try {
    assert.match((await findCommand('ip')) ?? '', /sbin\/ip$/);
    assert.equal(await findCommand('no-such-tool-at-all'), undefined);
  } finally {
    process.env.PATH = path;
  }
});

test('every package has its purpose, and the command or file that shows that it is installed', () => {
  for (const { name, why, command, file } of [
    ...PACKAGES,
    ...VOLUME_PACKAGES,
    ...TEST_PACKAGES,
    ...BENCH_PACKAGES,
    GO_PACKAGE,
  ]) {
    assert.ok(why.length > 0 && (command ?? file) !== undefined, name);
  }
});

test('set-up and the service have the same names for each architecture', () => {
  for (const [node, { name, loader, vmm }] of Object.entries(ARCHITECTURES)) {
    const service = architectureOf(node);
    assert.deepEqual([name, loader, vmm], [service.name, service.loader, service.vmm]);
  }
  assert.equal(ARCHITECTURE, ARCHITECTURES[process.arch]);
});

test('the kernel of a guest comes from the distribution of its host', () => {
  const debian = kernelSource('PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nID=debian\n');
  assert.equal(debian.meta, 'linux-image-cloud-amd64');
  const listed = 'linux-image-cloud-amd64\n  Depends: linux-image-6.12.107+deb13-cloud-amd64\n';
  assert.equal(debian.image.exec(listed)?.[1], 'linux-image-6.12.107+deb13-cloud-amd64');
  const ubuntu = kernelSource('NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\n');
  const [, image] = ubuntu.image.exec('linux-image-virtual\n  Depends: linux-image-6.8.0-90-generic\n') ?? [];
  assert.equal(image, 'linux-image-6.8.0-90-generic');
  assert.deepEqual(ubuntu.others(image), ['linux-modules-6.8.0-90-generic']);
  assert.equal(kernelSource('ID=linuxmint\nID_LIKE="ubuntu debian"\n'), ubuntu);
  assert.equal(kernelSource(''), debian);
});

test('a VMM that can map memory read-only is new enough, whatever its version is called', () => {
  for (const version of ['1:8.2.2+ds-0ubuntu1.8', '1:10.0.2+ds-2~bpo12+1', '1:9.0~rc1', '8.2.0'])
    assert.equal(isNewEnough(version), true, version);
  for (const version of ['1:7.2+dfsg-7+deb12u18+b3', '1:8.1.5', '1:6.2+dfsg-2ubuntu6'])
    assert.equal(isNewEnough(version), false, version);
});

test('a newer kernel is looked for once a day', async () => {
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-setup-'));
  after(() => rm(folder, { recursive: true, force: true }));
  const now = Date.now();
  assert.equal(await isCheckDue(folder, now + 60_000), false);
  assert.equal(await isCheckDue(folder, now + 25 * 60 * 60_000), true);
  assert.equal(await isCheckDue(folder, now - 25 * 60 * 60_000), true, 'the clock was set back');
});

test('a packed program runs from its folder with its own loader and libraries', async () => {
  const made = await mkdtemp(path.join(tmpdir(), 'releap-setup-'));
  after(() => rm(made, { recursive: true, force: true }));
  const said = await packProgram({ root: '/', program: '/usr/bin/xz', made, version: ['--version'] });
  assert.match(said, /^xz /);
  const libraries = await readdir(path.join(made, 'lib'));
  for (const name of ['ld-linux-x86-64.so.2', 'libc.so.6', 'liblzma.so.5'])
    assert.ok(libraries.includes(name), name);
});

test('a program whose library is in none of the folders of its package is refused', async () => {
  const made = await mkdtemp(path.join(tmpdir(), 'releap-setup-'));
  after(() => rm(made, { recursive: true, force: true }));
  const root = path.join(made, 'root');
  const folder = path.join(root, 'usr/lib/x86_64-linux-gnu');
  await mkdir(folder, { recursive: true });
  await promisify(execFile)('cp', ['-L', '/lib64/ld-linux-x86-64.so.2', folder]);
  await assert.rejects(
    packProgram({ root, program: '/usr/bin/xz', made, version: ['--version'] }),
    /xz needs lib\w+\.so\.\d+, which is not in /,
  );
});

test('guests with volumes have a kernel that maps their files shared', async () => {
  for (const version of ['6.6.0', '6.8.0-90-generic', '6.12.107+deb13-cloud-amd64', '7.0.1'])
    assert.equal(servesVolumes(version), true, version);
  for (const version of ['6.1.0-56-cloud-amd64', '6.5.9', '5.10.0'])
    assert.equal(servesVolumes(version), false, version);
  const build = path.resolve(import.meta.dirname, '../../build');
  const read = (folder) => readFile(path.join(build, folder, 'version'), 'utf8');
  assert.equal(servesVolumes(await read('volume-kernel').catch(() => read('kernel'))), true);
});

test('virtiofsd and its libraries are unpacked', async () => {
  const folder = path.resolve(import.meta.dirname, '../../build/virtiofsd/current');
  assert.match(await readFile(path.join(folder, 'version'), 'utf8'), /^1\.\d+\.\d+\n$/);
  assert.ok((await readdir(path.join(folder, 'lib'))).includes('libseccomp.so.2'));
});
