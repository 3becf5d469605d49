/** What comes out of a sandbox as an archive is hostile. */
import assert from 'node:assert/strict';
import { lstat, mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { describe, test } from 'node:test';
import { pack } from 'tar-stream';
import { unpackFolder } from '../src/node/index.ts';

async function temporary(): Promise<AsyncDisposable & { path: string }> {
  const path = await mkdtemp(join(tmpdir(), 'rlp-copy-'));
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}

describe('a hostile archive', () => {
  type Entry = Parameters<ReturnType<typeof pack>['entry']>[0];

  async function unpack(entries: [Entry, string?][], folder: string): Promise<unknown> {
    const archive = pack();
    for (const [header, content = ''] of entries) archive.entry(header, content);
    archive.finalize();
    const source = new PassThrough();
    (archive as unknown as NodeJS.ReadableStream).pipe(source);
    return unpackFolder(source, folder).then(
      () => null,
      (error: unknown) => error,
    );
  }

  test('cannot climb out of the folder', async () => {
    await using folder = await temporary();
    const inner = join(folder.path, 'inner');
    await mkdir(inner);
    assert.match(String(await unpack([[{ name: '../evil' }, 'x']], inner)), /leaves the folder/);
    assert.match(String(await unpack([[{ name: 'a/../../evil' }, 'x']], inner)), /leaves the folder/);
    await assert.rejects(stat(join(folder.path, 'evil')));
  });

  test('cannot write through its own symbolic link, to a file or a folder', async () => {
    await using folder = await temporary();
    const inner = join(folder.path, 'inner');
    await mkdir(inner);
    await writeFile(join(folder.path, 'victim'), 'safe');
    const link: Entry = { name: 'link', type: 'symlink', linkname: '..' };
    assert.match(String(await unpack([[link], [{ name: 'link/victim' }, 'x']], inner)), /is not a folder/);
    const direct: Entry = { name: 'direct', type: 'symlink', linkname: '../victim' };
    await unpack([[direct], [{ name: 'direct' }, 'x']], inner);
    assert.match(
      String(await unpack([[link], [{ name: 'link', type: 'directory', mode: 0 }]], inner)),
      /is not a folder/,
    );
    assert.equal(await readFile(join(folder.path, 'victim'), 'utf8'), 'safe');
  });

  test('brings no devices, and no set-id bits', async () => {
    await using folder = await temporary();
    const failed = await unpack(
      [
        [{ name: 'dev', type: 'character-device', devmajor: 1, devminor: 3 }],
        [{ name: 'hard', type: 'link', linkname: '/etc/passwd' }],
        [{ name: 'suid', mode: 0o6755 }, 'x'],
        [{ name: '/absolute' }, 'x'],
      ],
      folder.path,
    );
    assert.equal(failed, null);
    await assert.rejects(lstat(join(folder.path, 'dev')));
    await assert.rejects(lstat(join(folder.path, 'hard')));
    assert.equal((await stat(join(folder.path, 'suid'))).mode & 0o7777, 0o755);
    assert.ok(await stat(join(folder.path, 'absolute')));
  });
});
