import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { open, rm, statfs } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import { leftovers } from '@releap/testing/leftovers';
import { Service } from '@releap/testing/service';

const SMALL = { image: 'busybox', cpu: 1, mem_mib: 256, scratch_mib: 64 };

describe('a full disk', () => {
  /** Free space that a host's disk must have before a sandbox is placed on it. */
  const RESERVE_MIB = 256;
  const ROOM_MIB = 160;
  /** Of the host that tries it, or of the placement, if a heartbeat has said before that nothing is free. */
  const NO_SPACE = /disk below .* is full: \d+ MiB|no space|the most that is free is .* 0 MiB of disk/i;
  let service: Service | undefined;
  const home = join(mkdtempSync(join(tmpdir(), 'releap-full-')), 'home');
  const disk = join(home, 'runner');

  before(async () => {
    mkdirSync(disk, { recursive: true, mode: 0o700 });
    execFileSync('mount', [
      '-t',
      'tmpfs',
      '-o',
      `size=${RESERVE_MIB + ROOM_MIB}m,mode=0700`,
      'releap-test',
      disk,
    ]);
    service = await Service.start({}, home);
  });
  after(async () => {
    try {
      await service?.stop();
    } finally {
      execFileSync('umount', [disk]);
      rmSync(join(home, '..'), { recursive: true, force: true });
    }
  });

  /** Fills the disk but for this much, with a file of another program. */
  async function fill(leaveMib: number): Promise<void> {
    const { bavail, bsize } = await statfs(disk);
    await using file = await open(join(disk, 'other'), 'a');
    try {
      await file.write(Buffer.alloc(bavail * bsize - leaveMib * 2 ** 20));
      // The last bytes, though other processes take some meanwhile.
      if (leaveMib === 0) for (;;) await file.write(Buffer.alloc(4096));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
    }
  }

  test('a create fails with the reason and leaves nothing; with free space again the next one runs', async () => {
    assert.ok(service);
    await fill(RESERVE_MIB - 10);
    const { body } = await service.call<{ vm_id: string }>('POST', '/vms', SMALL);
    const vm = await service.waitFor(body.vm_id, 'failed');
    assert.equal(vm['status'], 'failed', JSON.stringify(vm));
    assert.match(String(vm['error']), NO_SPACE);
    await service.untilNoTraceOf(body.vm_id);
    await rm(join(disk, 'other'));
    await service.remove((await service.create(SMALL)).id);
  });

  test('not one byte free: a running guest blocks on ENOSPC while it writes and loses nothing, a create fails, both can be deleted', async () => {
    assert.ok(service);
    const { id } = await service.create({ ...SMALL, scratch_mib: 128 });
    const { id: gone } = await service.create({ ...SMALL, scratch_mib: 128, persistent: true });
    await fill(0);
    const write = 'dd if=/dev/urandom of=/big bs=1M count=32 conv=fsync 2> /dev/null && wc -c < /big';
    const written = service.exec(id, write);
    const never = service.exec(gone, write).catch(() => undefined);
    await eventually('a guest that is blocked on ENOSPC', async () => {
      assert.ok(service);
      await service.call('POST', `/vms/${gone}/pause`);
      const { body } = await service.call('GET', `/vms/${gone}?wait=running&timeout_ms=60000`);
      return /the sandbox is paused until there is space/.test(String(body['error'])) ? true : undefined;
    });
    // What the host has released meanwhile, such as waiting VMs, would let the next one begin to boot.
    await fill(0);
    const { status, body } = await service.call<{ vm_id: string }>('POST', '/vms', SMALL);
    assert.equal(status, 200);
    const vm = await service.waitFor(body.vm_id, 'failed');
    assert.equal(vm['status'], 'failed', JSON.stringify(vm));
    assert.match(String(vm['error']), NO_SPACE);
    await service.untilNoTraceOf(body.vm_id);
    await service.call('DELETE', `/vms/${gone}`);
    assert.equal((await service.waitFor(gone, 'deleted'))['status'], 'deleted');
    await service.untilNoTraceOf(gone);
    await never;

    await rm(join(disk, 'other'), { force: true });
    const { exitCode, result } = await written;
    assert.equal(exitCode, 0, result);
    assert.equal(result.trim(), String(32 * 2 ** 20));
    await service.remove(id);
  });

  test('the service stops and leaves nothing', async () => {
    assert.ok(service);
    assert.equal(await service.stop(), 0);
    assert.deepEqual(
      (await leftovers(home)).filter((line) => !line.includes(`mount: releap-test ${disk}`)),
      [],
    );
  });
});
