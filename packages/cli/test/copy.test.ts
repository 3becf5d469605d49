import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, readFile, readlink, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { type MachineHost, startMachineHost } from '@releap/testing/machine-host';
import { startToolboxRelay } from './relay.ts';
import { rlpHere } from './rlp.ts';
import { newProject, type Project } from './world.ts';

let host: MachineHost;
let project: Project;
before(async () => {
  host = await startMachineHost();
  project = await newProject(host.world);
  await project.create('web');
});
after(() => host[Symbol.asyncDispose]());

async function temporary(): Promise<AsyncDisposable & { path: string }> {
  const path = await mkdtemp(join(tmpdir(), 'rlp-copy-'));
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}

describe('rlp cp', () => {
  test('copies a file in and out, byte for byte, with its mode', async () => {
    await using folder = await temporary();
    const bytes = randomBytes(2_000_000);
    await writeFile(join(folder.path, 'a'), bytes, { mode: 0o755 });
    const inside = join(folder.path, 'inside');
    assert.deepEqual(await project.rlp(['cp', join(folder.path, 'a'), `web:${inside}`]), {
      code: 0,
      stdout: '',
      stderr: '',
    });
    assert.equal((await stat(inside)).mode & 0o777, 0o755);
    assert.equal((await project.rlp(['cp', `web:${inside}`, join(folder.path, 'back')])).code, 0);
    assert.ok(bytes.equals(await readFile(join(folder.path, 'back'))));
  });

  test('a file that is copied to a folder keeps its name', async () => {
    await using folder = await temporary();
    await mkdir(join(folder.path, 'in'));
    await mkdir(join(folder.path, 'out'));
    await writeFile(join(folder.path, 'a.txt'), 'x');
    assert.equal((await project.rlp(['cp', join(folder.path, 'a.txt'), `web:${folder.path}/in`])).code, 0);
    assert.equal((await project.rlp(['cp', `web:${folder.path}/in/a.txt`, `${folder.path}/out`])).code, 0);
    assert.equal(await readFile(join(folder.path, 'out/a.txt'), 'utf8'), 'x');
  });

  test('copies folders both ways, with links and empty folders', async () => {
    await using folder = await temporary();
    const source = join(folder.path, 'src');
    await mkdir(join(source, 'deep/empty'), { recursive: true });
    await writeFile(join(source, 'deep/file'), 'content');
    await writeFile(join(source, 'none'), '');
    await symlink('deep/file', join(source, 'link'));
    const inside = join(folder.path, 'inside');
    const there = await project.rlp(['cp', source, `web:${inside}`]);
    assert.deepEqual(there, { code: 0, stdout: '', stderr: '' });
    const back = await project.rlp(['cp', `web:${inside}`, join(folder.path, 'back')]);
    assert.deepEqual(back, { code: 0, stdout: '', stderr: '' });
    assert.equal(await readFile(join(folder.path, 'back/deep/file'), 'utf8'), 'content');
    assert.equal(await readlink(join(folder.path, 'back/link')), 'deep/file');
    assert.ok((await stat(join(folder.path, 'back/deep/empty'))).isDirectory());
    // A second copy finds the folder there and goes below it, as cp -r does.
    assert.equal((await project.rlp(['cp', source, `web:${inside}`])).code, 0);
    assert.equal(await readFile(join(inside, 'src/deep/file'), 'utf8'), 'content');
  });

  test('- is stdin and stdout', async () => {
    await using folder = await temporary();
    const inside = join(folder.path, 'f');
    assert.equal((await project.rlp(['cp', '-', `web:${inside}`], { input: 'piped' })).code, 0);
    assert.equal((await project.rlp(['cp', `web:${inside}`, '-'])).stdout, 'piped');
  });

  test('a missing file is reported, local and remote', async () => {
    const local = await project.rlp(['cp', '/no/such/file', 'web:/tmp/x']);
    assert.deepEqual(local, {
      code: 1,
      stdout: '',
      stderr: 'rlp: /no/such/file: there is no such file or folder\n',
    });
    const remote = await project.rlp(['cp', 'web:/no/such/file', '/tmp']);
    assert.equal(remote.code, 4);
    assert.match(remote.stderr, /\/no\/such\/file/);
    for (const ends of [
      ['/a', '/b'],
      ['web:/a', 'web:/b'],
      ['web:', '/b'],
    ])
      assert.equal((await project.rlp(['cp', ...ends])).code, 2);
  });

  test('an interrupted copy leaves the old file unchanged', async () => {
    await using folder = await temporary();
    const target = join(folder.path, 'old');
    await writeFile(target, 'old');
    await writeFile(join(folder.path, 'new'), 'new');
    await using relay = await startToolboxRelay(project);
    const [{ id }] = (await project.call('GET', '/vms')).body.vms;
    relay.answers.set(`GET /toolbox/${id}/files/download`, (_request, response) => {
      response.writeHead(200, { 'content-length': '100' }).write('half');
      setTimeout(() => response.destroy(), 50);
    });
    const outcome = await rlpHere({ url: relay.url, key: project.key }, [
      'cp',
      `web:${folder.path}/new`,
      target,
    ]);
    assert.equal(outcome.code, 3, outcome.stderr);
    assert.equal(await readFile(target, 'utf8'), 'old');
  });
});
