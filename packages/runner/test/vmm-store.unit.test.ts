import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, beforeEach, describe, it } from 'node:test';
import { pino } from 'pino';
import { VmmStore } from '../src/vmm/qemu/vmm-store.ts';

let root: string;
let dir: string;
before(async () => {
  root = await mkdtemp(join(tmpdir(), 'releap-vs-'));
});
after(() => rm(root, { recursive: true, force: true }));
beforeEach(async () => {
  dir = await mkdtemp(join(root, 'home-'));
});

/** As set-up leaves it. */
async function unpack(version: string, build = version): Promise<void> {
  const folder = join(dir, 'build/qemu/newest');
  await rm(folder, { recursive: true, force: true });
  await mkdir(join(folder, 'bin'), { recursive: true });
  await writeFile(join(folder, 'version'), `${version}\n`);
  await writeFile(join(folder, 'package'), `${build}\n`);
  await writeFile(join(folder, 'bin/qemu'), build);
}

/** Something that needs a VMM, at `path` below the folders that are searched. */
async function record(path: string, content: object | string): Promise<void> {
  await mkdir(join(dir, path, '..'), { recursive: true });
  await writeFile(join(dir, path), typeof content === 'string' ? content : JSON.stringify(content));
}

const open = () =>
  VmmStore.open({
    folder: join(dir, 'vmm'),
    buildDir: join(dir, 'build'),
    records: ['vms', 'snapshots', 'quarantine'].map((name) => join(dir, name)),
    log: pino({ level: 'silent' }),
  });
const present = async (): Promise<string[]> => (await readdir(join(dir, 'vmm'))).sort();

describe('the VMMs of a service', () => {
  it('are the newest one, and each that a VM, a suspend image or a quarantined entry names', async () => {
    await unpack('8.2.2');
    await open();
    for (const path of [
      'vms/a/vm.json',
      'vms/b/keep/paused.json',
      'snapshots/c/paused.json',
      'quarantine/sandboxes/d-1/keep/paused.json',
    ]) {
      await record(path, { vmm: '8.2.2' });
      await unpack('10.0.2');
      assert.equal((await open()).newest.version, '10.0.2');
      assert.deepEqual(await present(), ['10.0.2', '8.2.2'], path);
      await rm(join(dir, path));
      await unpack('8.2.2');
      await open();
    }
    await unpack('10.0.2');
    await open();
    assert.deepEqual(await present(), ['10.0.2']);
  });

  it('restore memory that their series has saved, and no other', async () => {
    await unpack('10.0.3');
    const store = await open();
    assert.equal(store.forState('10.0.3'), store.newest);
    assert.equal(store.forState('10.0.2'), store.newest);
    assert.equal(store.forState('10.1.0'), undefined);
    assert.equal(store.forState('../../etc'), undefined);
  });

  it('are replaced by a newer build of the same version', async () => {
    await unpack('10.0.2', 'build 1');
    await open();
    await unpack('10.0.2', 'build 2');
    await open();
    assert.equal(await readFile(join(dir, 'vmm/10.0.2/bin/qemu'), 'utf8'), 'build 2');
  });

  it('stay when it is unknown what needs them, and a partial record needs none', async () => {
    await unpack('8.2.2');
    await open();
    await unpack('10.0.2');
    await record('vms/b/keep/paused.json', '{"vmm":');
    await writeFile(join(dir, 'snapshots'), 'not a folder');
    await assert.rejects(open(), { code: 'ENOTDIR' });
    assert.deepEqual(await present(), ['8.2.2']);
    await rm(join(dir, 'snapshots'));
    await open();
    assert.deepEqual(await present(), ['10.0.2']);
  });

  it('are missing before set-up has run, and the error says so', async () => {
    await assert.rejects(open(), /there is no VMM in .*build\/qemu: run the set-up/);
  });
});
