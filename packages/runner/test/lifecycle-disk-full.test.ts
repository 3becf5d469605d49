import assert from 'node:assert/strict';
import { mkdtemp, readdir, rm, statfs } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { run } from '../src/network/command.ts';
import { eventually } from '../../contract/test/support/eventually.ts';
import { isolateNetwork } from './support/isolated-network.ts';
import { SPEC, TestRunner } from './support/sandboxes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const ID = '77777777-2222-4333-8444-555555555555';
const OTHER = '77777777-2222-4333-8444-666666666666';
const MEM_MIB = 256;

let home: string;
let runner: TestRunner;
before(async () => {
  home = await mkdtemp(join(tmpdir(), 'releap-lf-'));
  // A file system of its own, with little more than what a host keeps in reserve.
  await run('mount', ['-t', 'tmpfs', '-o', `size=${MEM_MIB + 300}m`, 'tmpfs', home]);
  runner = await TestRunner.open(home);
  runner.spec = { ...SPEC, vcpus: 1, mem_mib: MEM_MIB, scratch_mib: 64, ports: [] };
  runner.want(ID, 1, 'running');
  await runner.reported(1, 'running');
});
after(async () => {
  await runner.dispose().catch(() => undefined);
  await run('umount', [home]);
  await rm(home, { recursive: true });
});

async function fill(leaveMib = 0): Promise<void> {
  await eventually('a disk that is full', async () => {
    const { bavail, bsize } = await statfs(home);
    // What else writes to it may take some of the room meanwhile.
    await run('fallocate', ['-l', String(bavail * bsize - leaveMib * 1024 * 1024), join(home, 'ballast')]);
    return true;
  });
}

describe('on a host whose disk is full', () => {
  it('a sandbox that has no room is not created, and says so', async () => {
    await fill(4);
    runner.want(OTHER, 2, 'running');
    const { error } = await runner.reported(2, 'failed');
    assert.match(error ?? '', /the host's disk .*is full/);
    await rm(join(home, 'ballast'));
    runner.want(OTHER, 3, 'deleted');
    await runner.reported(3, 'deleted');
    assert.deepEqual(await readdir(join(home, 'vms')), [ID]);
  });

  it('a guest that runs gets all of its memory: a full disk takes none of it', async () => {
    await fill();
    const half = MEM_MIB / 2;
    await runner.sh(
      ID,
      `mount -o remount,size=90% /dev/shm; dd if=/dev/zero of=/dev/shm/all bs=1M count=${half} 2> /dev/null`,
    );
    assert.equal(await runner.sh(ID, 'echo alive'), 'alive\n');
    await rm(join(home, 'ballast'));
  });

  it('a pause fails, and the sandbox goes on running until there is room', async () => {
    await runner.sh(ID, 'echo here > /dev/shm/here; echo file > /file');
    await fill();
    runner.want(ID, 4, 'paused');
    const { error } = await runner.reported(4, 'running', 'paused');
    assert.match(error ?? '', /the host's disk is full: no room for the sandbox's memory/);
    await runner.reconciler.get(ID)?.idle();
    assert.equal(await runner.sh(ID, 'cat /dev/shm/here /file'), 'here\nfile\n');

    await rm(join(home, 'ballast'));
    runner.want(ID, 5, 'paused');
    await runner.reported(5, 'paused');
    runner.want(ID, 6, 'running', { start_from: 'memory' });
    await runner.reported(6, 'running');
    assert.equal(await runner.sh(ID, 'cat /dev/shm/here /file'), 'here\nfile\n');
  });
});
