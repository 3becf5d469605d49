import assert from 'node:assert/strict';
import { mkdir, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { it } from 'node:test';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { diskOf, ioMaxLines } from '../src/cgroup/disk-limit.ts';

it('the disk of a partition is limited, as the kernel limits no partitions', async () => {
  const folder = await temporaryFolder('releap-disk-');
  await mkdir(join(folder, 'devices/sda/sda1'), { recursive: true });
  await writeFile(join(folder, 'devices/sda/dev'), '8:0\n');
  await writeFile(join(folder, 'devices/sda/sda1/partition'), '1\n');
  await symlink('devices/sda', join(folder, '8:0'));
  await symlink('devices/sda/sda1', join(folder, '8:1'));
  assert.equal(await diskOf('8:0', folder), '8:0');
  assert.equal(await diskOf('8:1', folder), '8:0');
  assert.equal(await diskOf('0:45', folder), undefined);
  await rm(folder, { recursive: true });
});

it('a file system without a disk is refused, and only where there is a limit', async () => {
  assert.deepEqual(await ioMaxLines({}, ['/proc']), []);
  await assert.rejects(
    ioMaxLines({ iops: 100 }, ['/proc']),
    /cannot be limited at \/proc: .*no block device/,
  );
});
