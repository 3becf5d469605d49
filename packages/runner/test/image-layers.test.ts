import assert from 'node:assert/strict';
import { rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import * as fc from 'fast-check';
import { type Item, sha256, tarOf, temporaryFolder } from '@releap/testing/oci';
import { propertyRuns } from '@releap/testing/repetitions';
import { ImageError } from '../src/image/image-error.ts';
import { writeRootImage } from '../src/image/root-image.ts';
import { dir, file, link, listing, mergeLayers, mergeTars, symlink } from './support/image-layers.ts';

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
    const limits = { uncompressedBytes: 1 << 20 };
    await assert.rejects(
      mergeLayers(work.path, [{ path: blob, digest: 'sha256:x', diffId: 'sha256:x' }], limits),
      (error: ImageError) => error.code === 'too-large',
    );
  }
});

test('a layer that does not match the configuration, or is no archive, is reported', async () => {
  await using work = await temporaryFolder();
  const blob = path.join(work.path, 'blob');
  const tar = await tarOf([file('a')]);
  await writeFile(blob, gzipSync(tar));
  await assert.rejects(
    mergeLayers(work.path, [{ path: blob, digest: 'sha256:b', diffId: sha256('other') }]),
    {
      code: 'lying-registry',
      message: /layer sha256:b unpacks to sha256:\w+, but/,
    },
  );
  await writeFile(blob, gzipSync(tar).subarray(0, 40));
  await assert.rejects(mergeLayers(work.path, [{ path: blob, digest: 'sha256:b', diffId: sha256(tar) }]), {
    code: 'invalid-image',
  });
  const half = tar.subarray(0, 512);
  await writeFile(blob, half);
  await assert.rejects(mergeLayers(work.path, [{ path: blob, digest: 'sha256:b', diffId: sha256(half) }]), {
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
