import assert from 'node:assert/strict';
import { access, mkdir, readFile, readlink, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { terminal } from './support/terminal.ts';

const SIZE = ['--cpu', '1', '--mem', '512', '--scratch', '64'];

describe('volumes, with rlp', () => {
  let service: Service;
  let folder: string;
  const { rlp, output } = terminal(() => ({ service, folder }));
  before(async () => {
    folder = await temporaryFolder('volumes-e2e-');
    service = await sharedService();
    await output(['volume', 'create', 'data', '--size', '2g']);
  });
  after(async () => {
    await rlp(['volume', 'rm', 'data']);
    await service?.[Symbol.asyncDispose]();
    await rm(folder, { recursive: true, force: true });
  });

  test('outlive sandboxes; cp copies in and out, and commits', async () => {
    const write = 'echo from a sandbox > /data/file; ln -s /etc /data/away';
    await output(['run', '--rm', ...SIZE, '-v', 'data:/data:a/b', 'busybox', '--', 'sh', '-c', write]);
    const tree = join(folder, 'tree');
    await mkdir(join(tree, 'deep/empty'), { recursive: true });
    await writeFile(join(tree, 'deep/leaf'), 'green', { mode: 0o755 });
    await symlink('deep/leaf', join(tree, 'link'));
    assert.equal(await output(['volume', 'cp', 'tree', 'data:']), '');
    const piped = JSON.parse(
      await output(['--json', 'volume', 'cp', '-', 'data:notes/today'], 'piped'),
    ) as object;
    const { id } = JSON.parse(await output(['--json', 'volume', 'show', 'data'])) as { id: string };
    assert.deepEqual(piped, { volume: 'data', volume_id: id, files: 1, bytes: 5 });
    await output(['volume', 'cp', 'data:', 'all']);
    const read = (name: string): Promise<string> => readFile(join(folder, 'all', name), 'utf8');
    assert.equal(await read('a/b/file'), 'from a sandbox\n');
    assert.equal(await read('tree/deep/leaf'), 'green');
    assert.equal(await readlink(join(folder, 'all/tree/link')), 'deep/leaf');
    assert.equal(await read('notes/today'), 'piped');
    const away = await rlp(['volume', 'cp', 'data:a/b/away/passwd', '-']);
    assert.deepEqual([away.code, away.stdout], [1, '']);
    assert.match(away.stderr, /leads out of the volume/);
    // A sandbox that is being deleted is listed until it is gone, and `run --rm` does not wait for that.
    await eventually('no sandbox is left', async () => (await output(['ps', '-aq'])) === '');
  });

  test('go back to an earlier commit, and not while a sandbox has them', async () => {
    const [newest] = JSON.parse(await output(['--json', 'volume', 'history', 'data'])) as { id: string }[];
    assert.ok(newest);
    const id = (await output(['run', ...SIZE, '-v', 'data:/data', 'busybox'])).trim();
    await output(['exec', id, '--', 'sh', '-c', 'rm -r /data/tree; echo later > /data/later']);
    assert.notEqual((await output(['volume', 'commit', 'data'])).trim(), newest.id);
    assert.match((await rlp(['volume', 'restore', 'data', newest.id])).stderr, /mounted/);
    assert.match((await rlp(['volume', 'rm', 'data'])).stderr, /attached/);
    await output(['rm', '--wait', id]);
    await output(['volume', 'restore', 'data', newest.id.slice(0, 13)]);
    await output(['volume', 'cp', 'data:', 'restored']);
    assert.equal(await readFile(join(folder, 'restored/tree/deep/leaf'), 'utf8'), 'green');
    await assert.rejects(access(join(folder, 'restored/later')), { code: 'ENOENT' });
  });
});
