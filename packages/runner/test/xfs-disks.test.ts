import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, open, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { until } from '@releap/testing/eventually';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { XfsDisks, type DiskPaths } from '../src/volume/xfs-disks.ts';

const disks = new XfsDisks();
const exec = promisify(execFile);

async function copy(): Promise<DiskPaths & { folder: string }> {
  const folder = await temporaryFolder('volume');
  const mount = join(folder, 'mnt');
  const paths = {
    folder,
    image: join(folder, 'disk.img'),
    mount,
    data: join(mount, 'data'),
    displaced: join(mount, '.releap/limbo'),
  };
  after(() => disks.unmount(paths));
  return paths;
}

const loopsOf = async (image: string): Promise<string> =>
  (await exec('losetup', ['-n', '-O', 'AUTOCLEAR', '-j', image])).stdout;

test('a copy of any size is a sparse file, mounted through a device that is released with it', async () => {
  for (const sizeGb of [1, 10_000]) {
    const paths = await copy();
    await disks.mount(paths, sizeGb);
    await disks.mount(paths, sizeGb);
    const { size, blocks } = await stat(paths.image);
    assert.equal(size, sizeGb * 2 ** 30);
    assert.ok(blocks * 512 < 128 * 2 ** 20, `${blocks * 512} bytes are allocated`);
    assert.deepEqual((await readdir(paths.mount)).sort(), ['.releap', 'data']);
    const options = (await readFile('/proc/self/mounts', 'utf8'))
      .split('\n')
      .find((line) => line.includes(` ${paths.mount} `));
    assert.match(options ?? '', / xfs rw,nosuid,nodev,/);
    await writeFile(join(paths.data, 'file'), 'kept');
    assert.equal((await loopsOf(paths.image)).trim(), '1', 'the device is released with its last mount');
    await disks.unmount(paths);
    await disks.unmount(paths);
    assert.equal(await disks.isMounted(paths), false);
    await disks.mount(paths, sizeGb);
    assert.equal(await readFile(join(paths.data, 'file'), 'utf8'), 'kept');
  }
});

test('what an interrupted creation has left is replaced', async () => {
  const paths = await copy();
  await writeFile(`${paths.image}.partial`, 'half');
  await disks.mount(paths, 1);
  assert.deepEqual((await readdir(paths.folder)).sort(), ['disk.img', 'mnt']);
});

test('a copy in use is not unmounted', async () => {
  const paths = await copy();
  await disks.mount(paths, 1);
  const file = await open(join(paths.data, 'file'), 'w');
  try {
    await assert.rejects(disks.unmount(paths), /target is busy/);
    assert.equal(await disks.isMounted(paths), true);
  } finally {
    await file.close();
  }
});

test('a full copy refuses writes, and space of deleted files is given back to the host', async () => {
  const paths = await copy();
  await disks.mount(paths, 1);
  const file = join(paths.data, 'large');
  await assert.rejects(exec('fallocate', ['-l', '2G', file]), /No space left on device/);
  await exec('dd', ['if=/dev/zero', `of=${file}`, 'bs=1M', 'count=200', 'conv=fsync', 'status=none']);
  const used = async (): Promise<number> => (await stat(paths.image)).blocks * 512;
  assert.ok((await used()) > 200 * 2 ** 20);
  await exec('rm', [file]);
  await exec('sync', ['-f', paths.data]);
  await until(async () => (await used()) < 128 * 2 ** 20);
});

test('little of what was written waits in memory: free space of the host is what it says', async (t) => {
  const paths = await copy();
  await disks.mount(paths, 1);
  const [device = ''] = (await exec('findmnt', ['-no', 'SOURCE', paths.mount])).stdout
    .trim()
    .split('/')
    .slice(-1);
  const limit = `/sys/class/bdi/7:${device.replace('loop', '')}/strict_limit`;
  if (!existsSync(limit)) return t.skip('this kernel cannot limit it');
  // As of a process that was killed right after it had mounted it.
  await writeFile(limit, '0');
  await disks.mount(paths, 1);
  assert.equal(await readFile(limit, 'utf8'), '1\n');
  await exec('dd', ['if=/dev/zero', `of=${join(paths.data, 'large')}`, 'bs=1M', 'count=300', 'status=none']);
  const { blocks } = await stat(paths.image);
  assert.ok(blocks * 512 > 200 * 2 ** 20, `${blocks * 512} bytes are allocated`);
  await disks.unmount(paths);
  // The device may be that of another volume of this machine by now, until that is unmounted.
  await until(async () => (await readFile(limit, 'utf8')) === '0\n');
});

test('a folder in which no image can be made is an error that names it', async () => {
  const paths = await copy();
  await mkdir(paths.image);
  await assert.rejects(disks.mount(paths, 1), /disk\.img/);
});
