import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import * as fc from 'fast-check';
import { type Item, run, sha256, tarOf, temporaryFolder, writeOciLayout } from '@releap/testing/oci';
import { propertyRuns } from '@releap/testing/repetitions';
import { ImageError } from '../src/image/image-error.ts';
import { DEFAULT_IMAGE_LIMITS } from '../src/image/image-limits.ts';
import type { TreeNode } from '../src/image/layer-tree.ts';
import { mergeLayers, walk } from '../src/image/oci-flatten.ts';
import type { MergedImage } from '../src/image/oci-flatten.ts';
import { writeRootImage } from '../src/image/root-image.ts';
import { describeFolder, mergeTars } from './support/image-layers.ts';

/** name → what it is. */
function listing({ root, readLayer }: MergedImage): Record<string, string> {
  const result: Record<string, string> = {};
  const names = new Map<TreeNode, string>();
  for (const [name, node] of walk(root)) {
    const first = node.type === 'file' && node.names > 1 ? names.get(node) : undefined;
    names.set(node, first ?? name);
    if (first !== undefined) result[name] = `link ${first}`;
    else if (node.type === 'symlink') result[name] = `symlink ${node.link}`;
    else if (node.type === 'directory') result[name] = `directory ${node.mode.toString(8)}`;
    else {
      const content = Buffer.alloc(node.size);
      for (const { at, offset, length } of node.extents)
        readLayer(node.layer, content.subarray(at, at + length), offset);
      result[name] = `${node.type} ${content.toString()}`;
    }
  }
  return result;
}

async function merge(...layers: Item[][]): Promise<Record<string, string>> {
  await using dir = await temporaryFolder();
  using merged = await mergeTars(dir.path, await Promise.all(layers.map(tarOf)));
  return listing(merged);
}

async function refuses(code: string, message: RegExp, ...layers: Item[][]): Promise<void> {
  await assert.rejects(merge(...layers), (error: unknown) => {
    assert.ok(error instanceof ImageError, String(error));
    assert.match(error.message, message);
    assert.equal(error.code, code, error.message);
    return true;
  });
}

const dir = (name: string, mode = 0o755): Item => ({ name, type: 'directory', mode });
const file = (name: string, content = name): Item => ({ name, content });
const link = (name: string, linkname: string): Item => ({ name, type: 'link', linkname });
const symlink = (name: string, linkname: string): Item => ({ name, type: 'symlink', linkname });

test('later layers replace, hide and empty what lies below', async () => {
  assert.deepEqual(
    await merge(
      [
        dir('a', 0o700),
        file('a/keep'),
        file('a/gone'),
        file('a/new', 'old'),
        dir('b'),
        file('b/below'),
        file('c'),
      ],
      [
        dir('a', 0o711),
        file('a/.wh.gone', ''),
        file('a/new', 'new'),
        file('b/.wh..wh..opq', ''),
        file('b/above'),
      ],
    ),
    {
      a: 'directory 711',
      'a/keep': 'file a/keep',
      'a/new': 'file new',
      b: 'directory 755',
      'b/above': 'file b/above',
      c: 'file c',
    },
  );
});

test('a whiteout hides only what lies below, at any position in its layer', async () => {
  const below = [dir('a'), file('a/x', 'old'), file('a/y', 'old')];
  const expected = { a: 'directory 755', 'a/x': 'file new' };
  assert.deepEqual(await merge(below, [file('a/x', 'new'), file('a/.wh..wh..opq', '')]), expected);
  assert.deepEqual(await merge(below, [file('a/.wh..wh..opq', ''), file('a/x', 'new')]), expected);
  assert.deepEqual(
    await merge(below, [file('a/x', 'new'), file('a/.wh.x', ''), file('a/.wh.y', '')]),
    expected,
  );
});

test('a folder gives way to a file, a file to a folder, and both to a link', async () => {
  assert.deepEqual(
    await merge(
      [dir('a'), file('a/x'), file('b'), dir('c'), file('c/x')],
      [file('a', 'now'), dir('b'), file('b/y'), symlink('c', 'b')],
    ),
    {
      a: 'file now',
      b: 'directory 755',
      'b/y': 'file b/y',
      c: 'symlink b',
    },
  );
});

test('missing parents are made', async () => {
  assert.deepEqual(await merge([file('a/b/c')]), {
    a: 'directory 755',
    'a/b': 'directory 755',
    'a/b/c': 'file a/b/c',
  });
});

test('a name may lead through a symbolic link of a lower layer, which stays', async () => {
  const base = [
    dir('usr'),
    dir('usr/lib'),
    symlink('lib', 'usr/lib'),
    symlink('abs', '/usr'),
    symlink('up', '../../usr/lib'),
  ];
  assert.deepEqual(
    await merge(base, [file('lib/x'), file('abs/lib/y'), file('up/z'), file('lib/.wh.none', '')]),
    {
      abs: 'symlink /usr',
      lib: 'symlink usr/lib',
      up: 'symlink ../../usr/lib',
      usr: 'directory 755',
      'usr/lib': 'directory 755',
      'usr/lib/x': 'file lib/x',
      'usr/lib/y': 'file abs/lib/y',
      'usr/lib/z': 'file up/z',
    },
  );
  assert.deepEqual(await merge([...base, file('usr/lib/old')], [file('lib/.wh.old', '')]), await merge(base));
});

test('a hard link outlives the name it was made from, also across layers', async () => {
  assert.deepEqual(await merge([file('a', 'body'), link('b', 'a')], [file('.wh.a', '')]), { b: 'file body' });
  assert.deepEqual(await merge([file('a', 'body'), link('b', 'a')], [file('a', 'other')]), {
    a: 'file other',
    b: 'file body',
  });
  assert.deepEqual(await merge([file('z', 'body')], [link('a', 'z')]), { a: 'file body', z: 'link a' });
  assert.deepEqual(await merge([file('z', 'body')], [link('a', '/z'), file('.wh.z', '')]), {
    a: 'file body',
  });
});

test('names that lead out are refused, absolute ones are taken as relative', async () => {
  await refuses('invalid-image', /"\.\.\/x", which leads out/, [file('../x')]);
  await refuses('invalid-image', /leads out/, [file('a/../../x')]);
  await refuses('invalid-image', /leads out/, [file('ok'), link('b', '../../etc/passwd')]);
  await refuses('invalid-image', /hard link to "\/etc\/passwd", which is not in the image/, [
    link('b', '/etc/passwd'),
  ]);
  await refuses('invalid-image', /hard link to the folder/, [dir('a'), link('b', 'a')]);
  await refuses('invalid-image', /lies below "a", which is not a folder/, [file('a'), file('a/b')]);
  await refuses('invalid-image', /more than 40 symbolic links/, [
    symlink('a', 'b'),
    symlink('b', 'a'),
    file('a/x'),
  ]);
  await refuses('invalid-image', /names nothing that can be removed/, [file('.wh...', '')]);
  assert.deepEqual(await merge([symlink('out', '../../../../tmp'), file('out/x')]), {
    out: 'symlink ../../../../tmp',
    tmp: 'directory 755',
    'tmp/x': 'file out/x',
  });
});

test('limits hold before anything is written', async () => {
  await using work = await temporaryFolder();
  const tar = await tarOf([dir('d'), file('d/a', 'x'.repeat(4000)), file('d/b'), file('d/c')]);
  const cases: [Parameters<typeof mergeTars>[2], RegExp][] = [
    [{ entries: 3 }, /more than 3 entries/],
    [{ fileBytes: 3999 }, /"d\/a" has 4000 bytes, at most 3999/],
    [{ uncompressedBytes: 4096 }, /unpack to more than 4096 bytes/],
    [{ metadataBytes: 3 }, /more than 3 bytes of names/],
    [{ pathBytes: 2 }, /at most 2 are allowed/],
    [{ layers: 0 }, /1 layers, at most 0/],
  ];
  for (const [limits, message] of cases) {
    await assert.rejects(mergeTars(work.path, [tar], limits), message);
  }
  using merged = await mergeTars(work.path, [tar]);
  assert.equal(merged.entries, 5);
});

test('a bomb is stopped while it is unpacked', async () => {
  await using work = await temporaryFolder();
  for (const packed of [gzipSync(Buffer.alloc(8 << 20)), zstdCompressSync(Buffer.alloc(8 << 20))]) {
    const blob = path.join(work.path, 'bomb');
    await writeFile(blob, packed);
    const limits = { ...DEFAULT_IMAGE_LIMITS, uncompressedBytes: 1 << 20 };
    await assert.rejects(
      mergeLayers([{ path: blob, digest: 'sha256:x', diffId: 'sha256:x' }], { workDir: work.path, limits }),
      (error: ImageError) => error.code === 'too-large',
    );
  }
});

test('a layer that does not match the configuration, or is no archive, is reported', async () => {
  await using work = await temporaryFolder();
  const blob = path.join(work.path, 'blob');
  const tar = await tarOf([file('a')]);
  const options = { workDir: work.path, limits: DEFAULT_IMAGE_LIMITS };
  await writeFile(blob, gzipSync(tar));
  await assert.rejects(mergeLayers([{ path: blob, digest: 'sha256:b', diffId: sha256('other') }], options), {
    code: 'lying-registry',
    message: /layer sha256:b unpacks to sha256:\w+, but/,
  });
  await writeFile(blob, gzipSync(tar).subarray(0, 40));
  await assert.rejects(mergeLayers([{ path: blob, digest: 'sha256:b', diffId: sha256(tar) }], options), {
    code: 'invalid-image',
  });
  const half = tar.subarray(0, 512);
  await writeFile(blob, half);
  await assert.rejects(mergeLayers([{ path: blob, digest: 'sha256:b', diffId: sha256(half) }], options), {
    code: 'invalid-image',
    message: /damaged at byte 0: it ends in the middle of an entry/,
  });
});

test('any bytes at all are read as an archive or refused as one', async () => {
  await using work = await temporaryFolder();
  const image = path.join(work.path, 'image');
  const good = await tarOf([
    dir('a'),
    file('a/b', 'x'.repeat(700)),
    link('c', 'a/b'),
    file('n'.repeat(150)),
    { ...file('x'), pax: { 'SCHILY.xattr.user.a': 'b' } },
  ]);
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.tuple(fc.nat(good.length - 1), fc.nat(255)), { minLength: 1, maxLength: 6 }),
      async (changes) => {
        const bad = Buffer.from(good);
        for (const [at, value] of changes) {
          bad[at] = value;
          // Mend the header's checksum, so that what comes after it is tried too.
          const block = bad.subarray(at - (at % 512), at - (at % 512) + 512);
          block.fill(0x20, 148, 156);
          block.write(
            `${block
              .reduce((sum, byte) => sum + byte, 0)
              .toString(8)
              .padStart(6, '0')}\0 `,
            148,
            'latin1',
          );
        }
        try {
          await rm(image, { force: true });
          using merged = await mergeTars(work.path, [bad]);
          await writeRootImage(merged, image);
        } catch (error) {
          assert.ok(error instanceof ImageError, String((error as Error).stack));
          assert.notEqual(error.code, 'failed', error.stack);
        }
      },
    ),
    { numRuns: propertyRuns(300) },
  );
});

// ---- The same rules as a simple model, over names without symbolic links on the way.

interface Plain {
  type: string;
  text: string;
}

function modelMerge(layers: Item[][]): Map<string, Plain> | 'refused' {
  const tree = new Map<string, Plain>();
  const root: Plain = { type: 'directory', text: '' };
  const parentOf = (name: string): string => (name.includes('/') ? name.slice(0, name.lastIndexOf('/')) : '');
  const at = (name: string): Plain | undefined => (name === '' ? root : tree.get(name));
  const drop = (name: string): void => {
    for (const key of tree.keys()) if (key === name || key.startsWith(`${name}/`)) tree.delete(key);
  };
  for (const layer of layers) {
    const hidden = new Map<string, { parent: Plain | undefined; node: Plain }>();
    for (const { name } of layer) {
      const parent = parentOf(name);
      const base = name.slice(parent === '' ? 0 : parent.length + 1);
      if (!base.startsWith('.wh.') || at(parent)?.type !== 'directory') continue;
      const targets =
        base === '.wh..wh..opq'
          ? [...tree.keys()].filter((key) => parentOf(key) === parent)
          : [parent === '' ? base.slice(4) : `${parent}/${base.slice(4)}`];
      for (const target of targets) {
        const node = tree.get(target);
        if (node) hidden.set(target, { parent: at(parent), node });
        drop(target);
      }
    }
    for (const item of layer) {
      const { name } = item;
      if (name.includes('.wh.')) continue;
      const parts = name.split('/');
      for (let i = 1; i < parts.length; i += 1) {
        const parent = parts.slice(0, i).join('/');
        const existing = tree.get(parent);
        if (!existing) tree.set(parent, { type: 'directory', text: '755' });
        else if (existing.type !== 'directory') return 'refused';
      }
      const existing = tree.get(name);
      if (item.type === 'link') {
        const target = item.linkname ?? '';
        const was = hidden.get(target);
        const node = tree.get(target) ?? (was && was.parent === at(parentOf(target)) ? was.node : undefined);
        if (!node || node.type === 'directory') return 'refused';
        drop(name);
        tree.set(name, node);
      } else if (item.type === 'directory') {
        const text = (item.mode ?? 0).toString(8);
        if (existing?.type === 'directory') existing.text = text;
        else tree.set(name, { type: 'directory', text });
      } else {
        drop(name);
        tree.set(
          name,
          item.type === 'symlink'
            ? { type: 'symlink', text: item.linkname ?? '' }
            : { type: 'file', text: String(item.content) },
        );
      }
    }
  }
  return tree;
}

const anyName = fc
  .array(fc.constantFrom('a', 'b', 'c'), { minLength: 1, maxLength: 3 })
  .map((parts) => parts.join('/'));
const anyItem: fc.Arbitrary<Item> = fc.oneof(
  fc.tuple(anyName, fc.constantFrom(0o700, 0o755, 0o1777)).map(([name, mode]) => dir(name, mode)),
  fc
    .tuple(anyName, fc.string({ unit: 'grapheme-ascii', maxLength: 5 }))
    .map(([name, text]) => file(name, text)),
  fc.tuple(anyName, anyName).map(([name, target]) => link(name, target)),
  // Under names that are no folders' names, so that no other name leads through them.
  fc.tuple(anyName, anyName).map(([name, target]) => symlink(`${name}/s`, target)),
  anyName.map((name) => file(name.replace(/[abc]$/, '.wh.$&'), '')),
  anyName.map((name) => file(`${name}/.wh..wh..opq`, '')),
);

test('random stacks of layers give what the plain rules give', async () => {
  await using work = await temporaryFolder();
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.array(anyItem, { maxLength: 7 }), { minLength: 1, maxLength: 4 }),
      async (layers) => {
        const expected = modelMerge(layers);
        let actual: Record<string, string> | 'refused';
        try {
          using merged = await mergeTars(work.path, await Promise.all(layers.map(tarOf)));
          actual = listing(merged);
        } catch (error) {
          assert.ok(error instanceof ImageError && error.code === 'invalid-image', String(error));
          actual = 'refused';
        }
        if (expected === 'refused' || actual === 'refused') {
          assert.equal(actual, expected === 'refused' ? expected : Object.fromEntries(expected));
          return;
        }
        const first = new Map<Plain, string>();
        const wanted: Record<string, string> = {};
        for (const name of [...expected.keys()].sort()) {
          const node = expected.get(name) as Plain;
          const linked = node.type === 'file' ? first.get(node) : undefined;
          wanted[name] = linked === undefined ? `${node.type} ${node.text}` : `link ${linked}`;
          if (linked === undefined) first.set(node, name);
        }
        assert.deepEqual(actual, wanted);
      },
    ),
    { numRuns: propertyRuns(400) },
  );
});

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
    using merged = await mergeLayers([{ path: blob, digest: sha256(packed), diffId: sha256(tar) }], {
      workDir: work.path,
      limits: DEFAULT_IMAGE_LIMITS,
    });
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
