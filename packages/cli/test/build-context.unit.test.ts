/** What of a folder is sent as a build context. */
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { PassThrough, Readable } from 'node:stream';
import { after, test } from 'node:test';
import { extract } from 'tar-stream';
import { openContext, runImageName } from '../src/build/context.ts';
import { encodeForm } from '../src/build/form.ts';
import { CliError } from '../src/cli-error.ts';

const folders: string[] = [];
after(() => Promise.all(folders.map((path) => rm(path, { recursive: true, force: true }))));

async function folderOf(files: Record<string, string>): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'rlp-context-'));
  folders.push(folder);
  for (const [name, content] of Object.entries(files)) {
    await mkdir(dirname(join(folder, name)), { recursive: true });
    await writeFile(join(folder, name), content);
  }
  return folder;
}

interface Sent {
  dockerfile: string;
  /** Contents of files, targets of links, by path. */
  files: Map<string, string>;
}

async function sent(folder: string, file?: string, input = ''): Promise<Sent> {
  const context = await openContext(folder, {
    file,
    stdin: Readable.from([Buffer.from(input)]),
  });
  const target = new PassThrough();
  const archive = extract();
  const packed = context.pack(target);
  target.pipe(archive);
  const files = new Map<string, string>();
  for await (const entry of archive) {
    const chunks: Buffer[] = [];
    for await (const chunk of entry) chunks.push(chunk as Buffer);
    files.set(entry.header.name, entry.header.linkname ?? Buffer.concat(chunks).toString());
  }
  await packed;
  return { dockerfile: context.dockerfile, files };
}

test('all of the folder is sent, in the order of the names, with links as links', async () => {
  const folder = await folderOf({ Dockerfile: 'FROM a', 'src/b': 'b', 'src/a': 'a' });
  await symlink('src/a', join(folder, 'link'));
  const { dockerfile, files } = await sent(folder);
  assert.equal(dockerfile, 'Dockerfile');
  assert.deepEqual(
    [...files],
    [
      ['Dockerfile', 'FROM a'],
      ['link', 'src/a'],
      ['src/', ''],
      ['src/a', 'a'],
      ['src/b', 'b'],
    ],
  );
});

test('.dockerignore leaves files out, and takes exceptions back', async () => {
  const folder = await folderOf({
    Dockerfile: '',
    '.dockerignore': '# comment\nnode_modules\n**/*.log\n/build/*\n!build/keep\r\nDockerfile\n',
    'node_modules/a/b': '',
    'deep/er/x.log': '',
    'deep/er/x.txt': '',
    'build/drop': '',
    'build/keep': '',
    'other/build/drop': '',
  });
  const { files } = await sent(folder);
  assert.deepEqual(
    [...files.keys()].filter((name) => !name.endsWith('/')).sort(),
    // The builder reads these two, and leaves them out of copies itself.
    ['.dockerignore', 'Dockerfile', 'build/keep', 'deep/er/x.txt', 'other/build/drop'],
  );
});

test("a Dockerfile's own ignore file wins over that of the folder", async () => {
  const folder = await folderOf({
    'docker/app.Dockerfile': 'FROM app',
    'docker/app.Dockerfile.dockerignore': 'b',
    '.dockerignore': 'a',
    a: '',
    b: '',
  });
  const { dockerfile, files } = await sent(folder, join(folder, 'docker/app.Dockerfile'));
  assert.equal(dockerfile, 'docker/app.Dockerfile');
  assert.deepEqual(
    [files.has('a'), files.has('b'), files.has('docker/app.Dockerfile.dockerignore')],
    [true, false, true],
  );
});

test('a Dockerfile from elsewhere or from stdin is added, and no step copies it', async () => {
  const folder = await folderOf({ a: '', '.dockerignore': 'b\n', b: '' });
  const other = await folderOf({ Dockerfile: 'FROM other' });
  for (const [file, input, text] of [
    [join(other, 'Dockerfile'), '', 'FROM other'],
    ['-', 'FROM input', 'FROM input'],
  ] as const) {
    const { dockerfile, files } = await sent(folder, file, input);
    assert.equal(files.get(dockerfile), text);
    assert.deepEqual(
      files
        .get('.dockerignore')
        ?.split('\n')
        .filter((line) => line !== ''),
      ['b', dockerfile],
    );
    assert.equal(files.has('b'), false);
  }
});

test('what cannot be read is an error of usage', async () => {
  const folder = await folderOf({ a: '' });
  const refused = (message: RegExp) => (error: unknown) =>
    error instanceof CliError && error.exitCode === 2 && message.test(error.message);
  await assert.rejects(sent(folder), refused(/there is no Dockerfile .*name another one with -f/));
  await assert.rejects(sent(join(folder, 'a')), refused(/is not a folder/));
  await assert.rejects(sent(join(folder, 'none')), refused(/cannot be read/));
});

test('the image of a folder that is run has a valid name, and the same each time', async () => {
  assert.match(runImageName('/srv/My App (1)'), /^run-My-App-1--[0-9a-f]{8}$/);
  assert.match(runImageName('/'), /^run--[0-9a-f]{8}$/);
  assert.equal(runImageName('/srv/app/'), runImageName('/srv/app'));
  assert.notEqual(runImageName('/srv/app'), runImageName('/opt/app'));
});

test('a form is encoded as others read it', async () => {
  const { contentType, body } = encodeForm(
    { name: 'app', region: undefined },
    {
      name: 'context',
      filename: 'c.tar',
      contentType: 'application/x-tar',
      content: Readable.from([Buffer.from('\r\n--x')]),
    },
  );
  const form = await new Response(body as never, { headers: { 'content-type': contentType } }).formData();
  assert.equal(form.get('name'), 'app');
  assert.equal(form.has('region'), false);
  const file = form.get('context') as File;
  assert.deepEqual([file.name, await file.text()], ['c.tar', '\r\n--x']);
});
