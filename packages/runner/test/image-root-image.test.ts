/** Root images of merged layers, next to what other tools make of them. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { type Item, run, sha256, tarOf, temporaryFolder, writeOciLayout } from '@releap/testing/oci';
import { writeRootImage } from '../src/image/root-image.ts';
import { describeFolder, dir, file, link, mergeLayers, mergeTars, symlink } from './support/image-layers.ts';

test('the root image is what umoci unpacks from the same layers', async () => {
  await using work = await temporaryFolder();
  const owned = (item: Item, uid: number, gid: number, mode: number): Item => ({ ...item, uid, gid, mode });
  const layers = await Promise.all(
    [
      [
        dir('.', 0o750),
        dir('usr'),
        dir('usr/bin'),
        dir('usr/lib'),
        symlink('lib', 'usr/lib'),
        symlink('bin', '/usr/bin'),
        owned(file('usr/bin/su', 'setuid'), 0, 0, 0o4755),
        owned(file('usr/bin/tool', 'tool'), 1000, 3_000_000, 0o755),
        link('usr/bin/tool2', 'usr/bin/tool'),
        dir('var'),
        dir('var/old'),
        file('var/old/a'),
        file('var/old/b'),
        file(`var/${'long'.repeat(40)}/${'name'.repeat(50)}`),
        symlink('var/far', `/${'t'.repeat(180)}`),
        { name: 'dev/null', type: 'character-device' as const, devmajor: 1, devminor: 3, mode: 0o666 },
        { name: 'run/pipe', type: 'fifo' as const },
        file('swap'),
        dir('swapdir'),
        file('swapdir/x'),
      ],
      [
        file('lib/libc.so', 'through a symbolic link'),
        file('bin/ls'),
        file('var/old/.wh..wh..opq', ''),
        file('var/old/c'),
        file('usr/bin/.wh.tool', ''),
        file('.wh.swap', ''),
        dir('swap'),
        file('swap/y'),
      ],
      [
        owned(dir('tmp'), 0, 0, 0o1777),
        file('var/.wh.old', ''),
        file('.wh.swapdir', ''),
        file('swapdir', 'a file now'),
        link('bin/ls2', 'usr/bin/ls'),
      ],
    ].map(async (items: Item[]) => await tarOf(items)),
  );
  const layout = path.join(work.path, 'layout');
  await writeOciLayout(layout, layers);
  run('umoci', ['unpack', '--image', `${layout}:image`, path.join(work.path, 'bundle')]);

  const image = path.join(work.path, 'root.squashfs');
  using merged = await mergeTars(work.path, layers);
  await writeRootImage(merged, image);
  run('unsquashfs', ['-d', path.join(work.path, 'unpacked'), image]);

  assert.deepEqual(
    describeFolder(path.join(work.path, 'unpacked')),
    describeFolder(path.join(work.path, 'bundle', 'rootfs')),
  );
});

test('the same layers give the same image, byte for byte, however they are packed', async () => {
  await using work = await temporaryFolder();
  const tar = await tarOf([dir('.'), file('a'), link('b', 'a'), file('z', 'x'.repeat(300_000))]);
  const images: string[] = [];
  for (const [index, packed] of [tar, gzipSync(tar), zstdCompressSync(tar)].entries()) {
    const blob = path.join(work.path, `blob-${index}`);
    await writeFile(blob, packed);
    const target = path.join(work.path, `image-${index}`);
    using merged = await mergeLayers(work.path, [
      { path: blob, digest: sha256(packed), diffId: sha256(tar) },
    ]);
    await writeRootImage(merged, target);
    images.push(sha256(await readFile(target)));
  }
  assert.equal(new Set(images).size, 1);
  assert.match(
    run('unsquashfs', ['-lln', path.join(work.path, 'image-0')]),
    /^drwxr-xr-x 0\/0 +\d+ 2001-09-09 .* squashfs-root$/m,
  );
});

test('extended attributes and sparse files arrive as they are', async () => {
  await using work = await temporaryFolder();
  const source = path.join(work.path, 'source');
  run('mkdir', ['-p', source]);
  await writeFile(path.join(source, 'program'), 'x');
  run('setcap', ['cap_net_raw+ep', path.join(source, 'program')]);
  await writeFile(path.join(source, 'sparse'), 'end');
  run('truncate', ['-s', '5M', path.join(source, 'sparse')]);
  run('dd', [
    'if=/dev/urandom',
    `of=${path.join(source, 'sparse')}`,
    'bs=1000',
    'count=3',
    'seek=2000',
    'conv=notrunc',
    'status=none',
  ]);
  const formats = [
    ['--format=gnu'],
    ...['0.0', '0.1', '1.0'].map((version) => [
      '--format=pax',
      '--xattrs',
      '--xattrs-include=*',
      `--sparse-version=${version}`,
    ]),
  ];
  for (const [index, format] of formats.entries()) {
    const tar = path.join(work.path, 'in.tar');
    run('tar', ['-S', ...format, '-C', source, '-cf', tar, '.']);
    const image = path.join(work.path, `image-${index}`);
    using merged = await mergeTars(work.path, [await readFile(tar)]);
    await writeRootImage(merged, image);
    const out = path.join(work.path, `out-${index}`);
    run('unsquashfs', ['-d', out, image]);
    assert.deepEqual(await readFile(path.join(out, 'sparse')), await readFile(path.join(source, 'sparse')));
    if (index > 0) assert.match(run('getcap', [path.join(out, 'program')]), /cap_net_raw=ep/);
  }
});

test('a full disk is reported as such, and no partial image stays', async (t) => {
  await using work = await temporaryFolder();
  const small = path.join(work.path, 'small');
  run('mkdir', [small]);
  if (spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', small]).status !== 0) {
    t.skip('mounting a small file system is not allowed here');
    return;
  }
  try {
    using merged = await mergeTars(work.path, [
      await tarOf([{ name: 'big', content: Buffer.alloc(3 << 20, 'x') }]),
    ]);
    await assert.rejects(writeRootImage(merged, path.join(small, 'image')), {
      code: 'no-space',
      message: /no space left/,
    });
    assert.equal(run('ls', ['-A', small]), '');
  } finally {
    run('umount', [small]);
  }
});
