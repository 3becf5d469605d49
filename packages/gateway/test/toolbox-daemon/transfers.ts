/** Uploads and downloads of files. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { lstat, mkdir, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { request as httpRequest } from 'node:http';
import { join } from 'node:path';
import { test } from 'node:test';
import { until } from '@releap/testing/eventually';
import { agent, folder, url, authorization, call, form, daemons } from '../support/toolbox-world.ts';

test('many files go up and come down in one request each', async () => {
  const content = new Uint8Array(randomBytes(3_000_000));
  const names = Array.from({ length: 300 }, (_, index) => `${folder}/bulk/${index % 7}/file ${index}`);
  const odd = `${folder}/bulk/ünï "quoted" 100%.txt`;
  const files = [...names.map((name) => [name, name] as const), [odd, content] as const];
  const up = await call('POST', 'files/bulk-upload', form([...files, ['relative', '']]));
  assert.equal(up.status, 200, up.text);
  assert.equal(await readFile(join(agent.folder, 'relative'), 'utf8'), '');
  assert.deepEqual(new Uint8Array(await readFile(odd)), content);
  for (const name of names) assert.equal(await readFile(name, 'utf8'), name);

  const wanted = [names[0] ?? '', odd, `${folder}/none`, `${folder}/bulk`];
  const response = await fetch(url('files/bulk-download'), {
    method: 'POST',
    headers: { ...authorization, 'content-type': 'application/json' },
    body: JSON.stringify({ paths: wanted }),
  });
  const bytes = Buffer.from(await response.arrayBuffer());
  assert.match(response.headers.get('content-type') ?? '', /^multipart\/form-data; boundary=/);
  const text = bytes.toString('latin1');
  assert.ok(text.includes(`name="file"; filename="${names[0]}"`), text.slice(0, 400));
  assert.ok(text.includes(`name="file"; filename*=UTF-8''${encodeURIComponent(odd)}`));
  assert.ok(text.includes('Content-Length: 3000000'));
  assert.ok(bytes.includes(Buffer.from(content)));
  assert.match(text, /name="error"; filename="[^"]+\/none"[\s\S]*?"statusCode":404/);
  assert.match(text, /name="error"; filename="[^"]+\/bulk"[\s\S]*?"statusCode":400/);

  // One file that cannot be written does not keep the others from it.
  const some = await call(
    'POST',
    'files/bulk-upload',
    form([
      [`${folder}/bulk`, 'x'],
      [`${folder}/after`, 'y'],
    ]),
  );
  assert.equal(some.status, 400);
  assert.equal(await readFile(`${folder}/after`, 'utf8'), 'y');
});

test('an upload keeps links, modes and owners, and one that is cut off leaves nothing', async () => {
  const target = join(folder, 'kept');
  await writeFile(target, 'old', { mode: 0o640 });
  await symlink(target, join(folder, 'link'));
  assert.equal((await call('POST', 'files/bulk-upload', form([[join(folder, 'link'), 'new']]))).status, 200);
  assert.equal(await readFile(target, 'utf8'), 'new');
  assert.equal((await stat(target)).mode & 0o777, 0o640);
  assert.ok((await lstat(join(folder, 'link'))).isSymbolicLink());

  const before = await readdir(folder);
  const request = httpRequest(url('files/bulk-upload'), {
    method: 'POST',
    headers: { ...authorization, 'content-type': 'multipart/form-data; boundary=cut' },
  });
  request.on('error', () => undefined);
  request.write(`--cut\r\ncontent-disposition: form-data; name="files[0].path"\r\n\r\n${target}\r\n`);
  request.write('--cut\r\ncontent-disposition: form-data; name="files[0].file"; filename="x"\r\n\r\n');
  request.write(Buffer.alloc(4_000_000, 'half'));
  await until(async () => (await readdir(folder)).some((name) => name.startsWith('.releap-')));
  request.destroy();
  await until(async () => (await readdir(folder)).length === before.length);
  assert.equal(await readFile(target, 'utf8'), 'new');

  for (const [bad, text] of [
    [form([['', 'x']]), /path/],
    [new FormData(), /has no file/],
  ] as const) {
    const refused = await call('POST', 'files/bulk-upload', bad);
    assert.equal(refused.status, 400);
    assert.match(refused.text, text);
  }
});

/** Peak of the resident memory of a process, in MiB. */
const peakMib = async (pid: number): Promise<number> =>
  Number(/^VmHWM:\s+(\d+) kB$/m.exec(await readFile(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024;
const descriptors = async (pid: number): Promise<number> => (await readdir(`/proc/${pid}/fd`)).length;

test('an upload of 2 GB that is cut in the middle, and a download whose client stops reading, leave nothing and hold little', async () => {
  const big = join(folder, 'big');
  await mkdir(big);
  assert.equal((await call('GET', 'version')).status, 200);
  const [daemon = 0] = await daemons();
  const guests = [agent.pid, daemon];
  const before = await Promise.all(guests.map(descriptors));
  const sent = 192 * 2 ** 20;
  const part = 'content-disposition: form-data; name="files[0]';
  const head = `--cut\r\n${part}.path"\r\n\r\n${big}/a\r\n--cut\r\n${part}.file"; filename="x"\r\n\r\n`;
  for (const [tail, type, first] of [
    ['files/bulk-upload', 'multipart/form-data; boundary=cut', head],
    [`files/upload?path=${big}/a`, 'application/octet-stream', ''],
  ] as const) {
    const request = httpRequest(url(tail), {
      method: 'POST',
      headers: { ...authorization, 'content-type': type, 'content-length': 2 * 2 ** 30 },
    });
    const failed = once(request, 'error');
    request.write(first);
    const chunk = Buffer.alloc(1024 * 1024, 'half');
    for (let at = 0; at < sent; at += chunk.length) if (!request.write(chunk)) await once(request, 'drain');
    await until(async () => {
      const [name = ''] = await readdir(big);
      return name !== '' && (await stat(join(big, name))).size >= sent / 2;
    });
    request.destroy(new Error('cut'));
    await failed;
    await until(async () => (await readdir(big)).length === 0);
  }

  await writeFile(join(big, 'b'), Buffer.alloc(sent));
  for (const [method, tail, body] of [
    ['POST', 'files/bulk-download', JSON.stringify({ paths: [join(big, 'b')] })],
    ['GET', `files/download?path=${big}/b`, undefined],
  ] as const) {
    const headers = { ...authorization, ...(body && { 'content-type': 'application/json' }) };
    const response = await fetch(url(tail), { method, headers, ...(body && { body }) });
    const reader = response.body?.getReader();
    assert.ok(((await reader?.read())?.value?.length ?? 0) > 0);
    await reader?.cancel();
  }
  await rm(big, { recursive: true });
  // Kept-alive connections may remain, one for each kind of request.
  await until(async () =>
    (await Promise.all(guests.map(descriptors))).every((count, at) => count <= (before[at] ?? 0) + 4),
  );
  for (const pid of guests) assert.ok((await peakMib(pid)) < 64, `${await peakMib(pid)} MiB`);
});
