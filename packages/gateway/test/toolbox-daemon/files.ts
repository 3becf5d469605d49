/** Operations on files and folders. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdir, readFile, stat, symlink, writeFile } from 'node:fs/promises';
import { type IncomingMessage, request as httpRequest } from 'node:http';
import { join } from 'node:path';
import { test } from 'node:test';
import {
  box,
  gateway,
  folder,
  url,
  authorization,
  type Answer,
  call,
  form,
} from '../support/toolbox-world.ts';

test('paths that no file has are refused by every operation, and a folder of 10,000 files is listed', async () => {
  const nul = `${folder}/a%00b`;
  const json = `${folder}/a\0b`;
  const plain = `${folder}/plain`;
  for (const [method, tail, body] of [
    ['GET', `files?path=${nul}`],
    ['GET', `files/info?path=${nul}`],
    ['GET', `files/download?path=${nul}`],
    ['POST', `files/upload?path=${nul}`, {}],
    ['POST', `files/folder?path=${nul}`],
    ['DELETE', `files?path=${nul}`],
    ['POST', `files/move?source=${nul}&destination=${plain}`],
    ['POST', `files/move?source=${plain}&destination=${nul}`],
    ['POST', `files/permissions?path=${nul}&mode=644`],
    ['GET', `files/find?path=${nul}&pattern=x`],
    ['POST', 'files/replace', { files: [json], pattern: 'a', newValue: 'b' }],
    ['POST', 'files/bulk-upload', form([[json, 'x']])],
    ['GET', `git/status?path=${nul}`],
    ['POST', 'git/add', { path: json, files: ['.'] }],
    ['POST', 'process/execute', { command: 'pwd', cwd: json }],
    ['POST', 'process/session', { sessionId: 'a\0b' }],
    ['POST', 'process/pty', { id: 'nul', cwd: json }],
    ['POST', 'process/interpreter/context', { cwd: json }],
    // A last part that is no name.
    ['POST', `files/upload?path=${folder}/..`, {}],
    ['POST', 'files/bulk-upload', form([[`${folder}/..`, 'x']])],
  ] as const) {
    const { status, text } = await call(method, tail, body);
    const [first] = status === 200 ? (JSON.parse(text) as { success: boolean }[]) : [];
    assert.ok(status === 400 || first?.success === false, `${method} ${tail}: ${status} ${text}`);
  }
  const { status, text } = await call('POST', 'files/bulk-download', { paths: [json] });
  assert.ok(status === 200 && /name="error"/.test(text), text);
  // Dots within a path are those of the file system; in the path of a URL they are refused.
  await mkdir(join(folder, 'dots'));
  assert.equal((await call('GET', `files/info?path=${folder}/dots/../dots`)).body['name'], 'dots');
  const dots = httpRequest({
    port: gateway.port,
    path: `/toolbox/${box}/../x`,
    headers: authorization,
  }).end();
  const [refused] = (await once(dots, 'response')) as [IncomingMessage];
  assert.equal(refused.resume().statusCode, 400);

  const many = join(folder, 'many');
  const made = await call('POST', 'process/execute', {
    command: `mkdir ${many} && cd ${many} && seq 1 10001 | xargs touch`,
  });
  assert.equal(made.body['exitCode'], 0, made.text);
  for (const tail of [`files?path=${many}`, `files/search?path=${many}&pattern=*`]) {
    const response = await fetch(url(tail), { headers: authorization });
    const body = (await response.json()) as unknown[] | { files: string[] };
    assert.equal(('files' in body ? body.files : body).length, 10_000, tail);
    assert.equal(response.headers.get('x-releap-truncated'), 'true', tail);
  }
  assert.equal((await call('DELETE', `files?path=${many}&recursive=true`)).status, 204);
});

test('files are moved, given permissions, found and changed', async () => {
  const root = join(folder, 'tree');
  await mkdir(join(root, 'sub'), { recursive: true });
  await writeFile(join(root, 'a.txt'), 'one\ntwo three\n');
  await writeFile(join(root, 'sub/b.txt'), 'three (literal\n');
  await writeFile(join(root, 'binary'), Buffer.from('three\0three'));
  await symlink('/', join(root, 'sub/loop'));

  const found = await call<object[]>('GET', `files/find?path=${root}&pattern=thr.e`);
  assert.deepEqual(found.body, [
    { file: join(root, 'a.txt'), line: 2, content: 'two three' },
    { file: join(root, 'sub/b.txt'), line: 1, content: 'three (literal' },
  ]);
  assert.equal((await call<object[]>('GET', `files/find?path=${root}&pattern=(lit`)).body.length, 1);
  assert.deepEqual((await call('GET', `files/search?path=${root}&pattern=*.txt`)).body, {
    files: [join(root, 'a.txt'), join(root, 'sub/b.txt')],
  });
  const replaced = await call('POST', 'files/replace', {
    files: [join(root, 'a.txt'), join(root, 'none')],
    pattern: 'two',
    newValue: '$1 2',
  });
  assert.deepEqual(replaced.body, [
    { file: join(root, 'a.txt'), success: true },
    { file: join(root, 'none'), success: false, error: `${join(root, 'none')}: not found` },
  ]);
  assert.equal(await readFile(join(root, 'a.txt'), 'utf8'), 'one\n$1 2 three\n');

  const move = (source: string, destination: string): Promise<Answer<unknown>> =>
    call('POST', `files/move?source=${join(root, source)}&destination=${join(root, destination)}`);
  assert.equal((await move('a.txt', 'c.txt')).status, 200);
  assert.equal((await move('c.txt', 'sub')).status, 200);
  assert.equal((await move('sub/c.txt', 'binary')).status, 409);
  assert.equal((await move('none', 'x')).status, 404);

  const permissions = (query: string): Promise<Answer<unknown>> =>
    call('POST', `files/permissions?path=${join(root, 'sub/c.txt')}&${query}`);
  assert.equal((await permissions('mode=600&owner=12&group=34')).status, 200);
  const { mode, uid, gid } = await stat(join(root, 'sub/c.txt'));
  assert.deepEqual([mode & 0o777, uid, gid], [0o600, 12, 34]);
  assert.equal((await permissions('mode=rw')).status, 400);
  assert.equal((await permissions('owner=no-such-user')).status, 404);
});
