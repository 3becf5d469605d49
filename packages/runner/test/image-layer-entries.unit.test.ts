import assert from 'node:assert/strict';
import { closeSync, openSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { type Item, tarOf, temporaryFolder } from '@releap/testing/oci';
import { readEntries, readIndex, writeIndex } from '../src/image/layer-entries.ts';

test('an index says what the headers of its archive say, and a damaged one says nothing', async () => {
  await using work = await temporaryFolder();
  const archive = path.join(work.path, 'layer.tar');
  const attributes = { 'SCHILY.xattr.user.one': 'value', 'SCHILY.xattr.trusted.two': '\u0001\u007f' };
  const items = [
    { name: 'folder', type: 'directory', mode: 0o1777, uid: 5, gid: 100_000 },
    { name: 'folder/fïle "ü"\n', content: 'content' },
    { name: 'empty', content: '', pax: attributes },
    { name: 'to', type: 'symlink', linkname: '/folder' },
    { name: 'hard', type: 'link', linkname: 'empty' },
    { name: 'device', type: 'character-device', devmajor: 1, devminor: 3 },
    { name: '.wh.gone', content: '' },
  ] as const satisfies readonly Item[];
  writeFileSync(archive, await tarOf(items));
  const fd = openSync(archive, 'r');
  try {
    const entries = readEntries(fd, statSync(archive).size);
    assert.ok(entries);
    assert.equal(entries.length, items.length);
    const index = path.join(work.path, 'layer.index');
    writeIndex(index, entries);
    assert.deepEqual(readIndex(index), entries);
    writeFileSync(index, '[["cut off');
    assert.equal(readIndex(index), undefined);
    assert.equal(readIndex(path.join(work.path, 'none')), undefined);
  } finally {
    closeSync(fd);
  }
});
