/** Root images as other readers see them: squashfs-tools, and the kernel where it may mount one. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { mkdir, open, stat } from 'node:fs/promises';
import path from 'node:path';
import { describe, it } from 'node:test';
import { type Item, run, tarOf, temporaryFolder } from '@releap/testing/oci';
import { writeRootImage } from '../src/image/root-image.ts';
import { describeFolder, mergeTars } from './support/image-layers.ts';

/** More than an index entry, a header and a 16 bit size can hold. */
const MANY = 3000;
const longName = (index: number): string => `${'n'.repeat(index % 200)}-${index}`;

async function imageOf(work: string, layers: readonly (readonly Item[])[]): Promise<string> {
  const target = path.join(work, 'root.squashfs');
  using merged = await mergeTars(work, await Promise.all(layers.map(tarOf)));
  const size = await writeRootImage(merged, target);
  assert.equal((await stat(target)).size, size);
  return target;
}

/** Every kind of entry, with folders of all sizes. */
function everything(): Item[] {
  const many = Array.from(
    { length: MANY },
    (_, index): Item => ({ name: `many/${longName(index)}`, content: `${index}` }),
  );
  const deep = Array.from({ length: 60 }, (_, index) => `d${index}`).join('/');
  const attributes = (value: string): Item['pax'] => ({
    'SCHILY.xattr.user.one': value,
    'SCHILY.xattr.trusted.two': 'same',
  });
  return [
    { name: '.', type: 'directory', mode: 0o751, uid: 3, gid: 4 },
    ...many,
    { name: 'empty', type: 'directory', mode: 0o700 },
    { name: `${deep}/file`, content: 'deep' },
    { name: 'none', content: '' },
    { name: 'large', content: Buffer.alloc(1_000_000, 'large') },
    { name: 'exact', content: Buffer.alloc(2 * 128 * 1024, 'x') },
    { name: 'first', content: 'linked', uid: 100_000, gid: 70_000 },
    { name: 'second', type: 'link', linkname: 'first' },
    { name: 'empty/third', type: 'link', linkname: 'first' },
    { name: 'to', type: 'symlink', linkname: '/many' },
    { name: 'pipe', type: 'fifo' },
    { name: 'block', type: 'block-device', devmajor: 259, devminor: 70_000 },
    { name: 'with', content: 'attributes', pax: attributes('a') },
    { name: 'with2', content: 'the same', pax: attributes('a') },
    { name: 'with3', type: 'directory', pax: attributes('b') },
    { name: 'with4', type: 'fifo', pax: { 'SCHILY.xattr.trusted.two': 'pipe' } },
  ];
}

/** As another archiver reads them. */
function attributesOf(root: string, name: string): string[] {
  const archive = run('tar', [
    '--xattrs',
    '--xattrs-include=*',
    '--no-recursion',
    '-C',
    root,
    '-cf',
    '-',
    name,
  ]);
  return [...archive.matchAll(/SCHILY\.xattr\.((?:user|trusted)\.\w+=\w+)\n/g)]
    .map(([, pair = '']) => pair)
    .sort();
}

/** A kernel that reads the image, if this machine has one and lets us. */
async function mounted(work: string, image: string, use: (root: string) => void): Promise<boolean> {
  const root = path.join(work, 'mounted');
  await mkdir(root);
  if (spawnSync('mount', ['-t', 'squashfs', '-o', 'loop,ro', image, root]).status !== 0) return false;
  try {
    use(root);
  } finally {
    run('umount', [root]);
  }
  return true;
}

describe('a root image', () => {
  it('holds what tar extracts from the same archive', async () => {
    await using work = await temporaryFolder();
    const items = everything();
    const image = await imageOf(work.path, [items]);
    const expected = path.join(work.path, 'expected');
    const unpacked = path.join(work.path, 'unpacked');
    await mkdir(expected);
    const archive = await open(path.join(work.path, 'in.tar'), 'wx');
    await archive.writeFile(await tarOf(items));
    await archive.close();
    run('tar', [
      '-xpf',
      path.join(work.path, 'in.tar'),
      '--numeric-owner',
      '--xattrs',
      '--xattrs-include=*',
      '-C',
      expected,
    ]);
    run('unsquashfs', ['-d', unpacked, image]);
    assert.deepEqual(describeFolder(unpacked), describeFolder(expected));
    for (const name of ['with', 'with2', 'with3']) {
      const value = name === 'with3' ? 'b' : 'a';
      assert.deepEqual(attributesOf(unpacked, name), ['trusted.two=same', `user.one=${value}`]);
    }
  });

  it('is one that the kernel mounts, and finds each name of a large folder in', async (t) => {
    await using work = await temporaryFolder();
    const image = await imageOf(work.path, [everything()]);
    const isMounted = await mounted(work.path, image, (root) => {
      assert.equal(readdirSync(path.join(root, 'many')).length, MANY);
      for (let index = 0; index < MANY; index += 1)
        assert.equal(readFileSync(path.join(root, 'many', longName(index)), 'utf8'), String(index));
      assert.deepEqual(readFileSync(path.join(root, 'large')), Buffer.alloc(1_000_000, 'large'));
      assert.deepEqual(attributesOf(root, 'with'), ['trusted.two=same', 'user.one=a']);
      assert.equal(readFileSync(path.join(root, 'empty/third'), 'utf8'), 'linked');
    });
    if (!isMounted) t.skip('this machine mounts no squashfs');
  });

  it('of layers that hide each other holds what remains, with holes for what was sparse', async () => {
    await using work = await temporaryFolder();
    const image = await imageOf(work.path, [
      [
        { name: 'a', content: 'below' },
        { name: 'gone', content: Buffer.alloc(50_000, 'g') },
        { name: 'z', content: 'z' },
      ],
      [
        { name: 'a', content: 'above' },
        { name: '.wh.gone', content: '' },
      ],
    ]);
    assert.equal(run('unsquashfs', ['-cat', image, 'a']), 'above');
    assert.equal(run('unsquashfs', ['-cat', image, 'z']), 'z');
    assert.ok(!run('unsquashfs', ['-l', image]).includes('gone'));
  });

  it('with nothing in it is one all the same', async () => {
    await using work = await temporaryFolder();
    const image = await imageOf(work.path, [[]]);
    assert.match(run('unsquashfs', ['-ll', image]), /^drwxr-xr-x .* squashfs-root$/m);
  });
});
