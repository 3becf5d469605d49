import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { pino } from 'pino';
import { until } from '@releap/testing/eventually';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { Ballast } from '../src/disk/ballast.ts';
import { fileSystemsOf, lowBytes, spaceOf, SpaceWatch } from '../src/disk/space-watch.ts';
import { XfsDisks } from '../src/volume/xfs-disks.ts';

const exec = promisify(execFile);
const dd = async (...args: string[]): Promise<unknown> =>
  await exec('dd', ['if=/dev/zero', 'bs=1M', 'status=none', ...args]);

const disks = new XfsDisks();
const paths = () => ({
  image: join(host, 'disk.img'),
  mount: join(host, 'volume'),
  data: join(host, 'volume/data'),
  displaced: join(host, 'volume/.releap'),
});
let host: string;
before(async () => {
  const folder = await temporaryFolder('host');
  host = join(folder, 'mnt');
  await mkdir(host);
  await exec('truncate', ['-s', '1G', join(folder, 'disk.img')]);
  await exec('mkfs.ext4', ['-q', '-m', '0', join(folder, 'disk.img')]);
  await exec('mount', ['-o', 'loop', join(folder, 'disk.img'), host]);
});
after(async () => {
  await disks.unmount(paths());
  // The loop device of the volume may still be closing its image.
  await until(async () => {
    return await exec('umount', [host]).then(
      () => true,
      () => false,
    );
  });
});

test('what a volume was told is written survives another program that fills the disk of the host', async () => {
  const ballast = new Ballast(host);
  await ballast.allocate();
  assert.ok((await readdir(host)).includes('ballast'));
  await disks.mount(paths(), 1);
  const file = join(paths().data, 'file');
  // Waits in memory for the most part, while the other program takes all space there is.
  const written = dd(`of=${file}`, 'count=12');
  const { freeBytes } = await spaceOf(host);
  await exec('fallocate', ['-l', String(freeBytes - 2 ** 20), join(host, 'hog')]);
  await dd(`of=${join(host, 'rest')}`).catch(() => undefined);
  let isShort = false;
  const watch = new SpaceWatch({
    folder: host,
    onShort: () => {
      isShort = true;
    },
    ballast,
    log: pino({ enabled: false }),
  });
  try {
    await until(async () => isShort && !(await readdir(host)).includes('ballast'));
    await written;
    // Fails if writeback has met ENOSPC.
    await exec('sync', [file]);
    await exec('rm', [join(host, 'hog'), join(host, 'rest')]);
    await until(async () => !watch.isShort && (await readdir(host)).includes('ballast'));
  } finally {
    watch.close();
  }
  const { totalBytes } = await spaceOf(host);
  assert.ok(lowBytes(totalBytes) < totalBytes / 10);
});

test('each file system is watched once', async () => {
  const [one, two] = [await temporaryFolder('one'), await temporaryFolder('two')];
  assert.deepEqual(await fileSystemsOf([one, two, host]), [one, host]);
});
