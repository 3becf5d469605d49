/** What happens inside a sandbox, through the unmodified `@daytonaio/sdk` and `@computesdk/daytona`. */
import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import {
  computeSdk,
  daytonaOf,
  fails,
  isNewestSdk,
  PATIENT,
  sdk,
  type Untyped,
} from '@releap/testing/daytona';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';
import { until } from '@releap/testing/eventually';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { recordMethods } from './support/sdk-methods.ts';

const methods = recordMethods(import.meta.filename);
let service: Service;
let daytona: Untyped;
let sandbox: Untyped;
let folder: string;
before(async () => {
  folder = await temporaryFolder('releap-sdk-');
  service = await sharedService();
  daytona = daytonaOf(service);
  // GiB.
  const resources = { cpu: 1, memory: 0.25, disk: 0.25 };
  sandbox = await daytona.create({ image: 'busybox', resources }, PATIENT);
});
after(async () => {
  await service?.[Symbol.asyncDispose]();
});

describe('process', () => {
  test('executeCommand() takes a folder, variables and a timeout', async () => {
    const { process } = sandbox;
    const { exitCode, result } = await process.executeCommand('echo $A; pwd; exit 4', '/tmp', {
      A: 'b',
    });
    assert.deepEqual([exitCode, result], [4, 'b\n/tmp\n']);
    assert.equal((await process.executeCommand('echo e >&2')).result, 'e\n');
    await fails(
      () => process.executeCommand('sleep 60', undefined, undefined, 1),
      isNewestSdk ? sdk.DaytonaTimeoutError : sdk.DaytonaError,
      /time/,
      408,
    );
    await fails(() => process.executeCommand('true', '/nowhere'), sdk.DaytonaNotFoundError, /nowhere/);
  });

  test('the session of the entrypoint has its command, and its log', async () => {
    const { process } = sandbox;
    // A shell without input.
    await until(async () => (await process.getEntrypointSession()).commands[0]?.exitCode === 0);
    const { sessionId, commands } = await process.getEntrypointSession();
    assert.deepEqual([sessionId, commands.length], ['entrypoint', 1]);
    // The last output may come after the end.
    await until(async () => /exited with code 0/.test((await process.getEntrypointLogs()).output));
    const { output, stdout, stderr } = await process.getEntrypointLogs();
    assert.deepEqual([stdout, stderr], [output, '']);
    let followed = '';
    await process.getEntrypointLogs(
      (chunk: string) => (followed += chunk),
      () => undefined,
    );
    assert.equal(followed, output);
  });

  test('a session keeps its state, streams the logs of its commands, and takes input', async () => {
    const { process } = sandbox;
    await process.createSession('work');
    await process.executeSessionCommand('work', { command: 'export A=kept; cd /tmp' });
    const { stdout, stderr, exitCode } = await process.executeSessionCommand('work', {
      command: 'echo $A; pwd; echo e >&2; (exit 5)',
    });
    assert.deepEqual([stdout, stderr, exitCode], ['kept\n/tmp\n', 'e\n', 5]);

    const { cmdId } = await process.executeSessionCommand('work', {
      command: 'read line; echo "got $line"; echo e >&2',
      runAsync: true,
    });
    const heard = { out: '', err: '' };
    const streamed = process.getSessionCommandLogs(
      'work',
      cmdId,
      (chunk: string) => (heard.out += chunk),
      (chunk: string) => (heard.err += chunk),
    );
    await process.sendSessionCommandInput('work', cmdId, 'a line\n');
    await streamed;
    assert.match(heard.out, /got a line/);
    assert.equal(heard.err, 'e\n');
    const command = await process.getSessionCommand('work', cmdId);
    assert.equal(command.exitCode, 0);
    assert.match((await process.getSessionCommandLogs('work', cmdId)).stdout, /got a line/);
    assert.equal((await process.getSession('work')).commands.length, 3);
    assert.deepEqual(
      (await process.listSessions()).map((one: Untyped) => one.sessionId),
      ['work'],
    );
    await fails(() => process.createSession('work'), sdk.DaytonaConflictError, /work/);
    await process.deleteSession('work');
    await fails(() => process.getSession('work'), sdk.DaytonaNotFoundError, /work/);
  });

  test('a PTY runs a shell of a given size, and ends with its exit code', async () => {
    const { process } = sandbox;
    let text = '';
    const pty = await process.createPty({
      id: 'shell',
      cols: 100,
      rows: 30,
      onData: (bytes: Uint8Array) => (text += Buffer.from(bytes).toString()),
    });
    await pty.waitForConnection();
    assert.deepEqual(
      (await process.listPtySessions()).map((one: Untyped) => [one.id, one.cols, one.active]),
      [['shell', 100, true]],
    );
    assert.equal((await pty.resize(120, 40)).cols, 120);
    await pty.sendInput('stty size; exit 6\n');
    assert.equal((await pty.wait()).exitCode, 6);
    assert.match(text, /40 120/);

    const other = await process.createPty({ id: 'other', onData: () => undefined });
    await other.disconnect();
    assert.equal(other.isConnected(), false);
    assert.equal((await process.resizePtySession('other', 90, 20)).cols, 90);
    let later = '';
    const again = await process.connectPty('other', {
      onData: (bytes: Uint8Array) => (later += Buffer.from(bytes).toString()),
    });
    await again.sendInput('echo "$((6 * 7))"; read line; exit 0\n');
    await until(() => /\b42\b/.test(later));
    assert.equal((await process.getPtySessionInfo('other')).rows, 20);
    await again.kill();
    await again.wait();
    const last = await process.createPty({ id: 'last', onData: () => undefined });
    await process.killPtySession('last');
    await last.wait();
    await fails(() => process.getPtySessionInfo('last'), sdk.DaytonaNotFoundError, /last/);
  });

  test('code is refused in an image that has no program for it', async () => {
    const { process, codeInterpreter, git } = sandbox;
    await fails(
      () => process.codeRun('print(1)'),
      sdk.DaytonaError,
      /^POST \/process\/code-run: .*python/,
      501,
    );
    await assert.rejects(() => codeInterpreter.runCode('print(1)'));
    await fails(
      () => codeInterpreter.createContext(),
      sdk.DaytonaError,
      /interpreter\/context: .*python/,
      501,
    );
    await fails(
      () => git.clone('https://git.test/a', '/tmp/a'),
      sdk.DaytonaError,
      /git\/clone: .*no git/,
      501,
    );
    await fails(() => git.status('/tmp'), sdk.DaytonaError, /git\/status: .*no git/, 501);
  });
});

describe('fs', () => {
  test('uploads and downloads keep every byte, also under names that are not ASCII', async () => {
    const { fs } = sandbox;
    const bytes = Buffer.from(Array.from({ length: 3 * 1024 * 1024 }, (_, i) => (i * 31) % 256));
    for (const name of ['/tmp/plain', '/tmp/with space "quoted"', '/tmp/öl-日本.bin']) {
      await fs.uploadFile(bytes, name);
      assert.ok(bytes.equals(await fs.downloadFile(name)), name);
    }
    await writeFile(join(folder, 'local'), 'from a file');
    await fs.uploadFiles([
      { source: join(folder, 'local'), destination: '/tmp/many/one' },
      { source: Buffer.alloc(0), destination: '/tmp/many/empty' },
    ]);
    await fs.downloadFile('/tmp/many/one', join(folder, 'back'));
    assert.equal(await readFile(join(folder, 'back'), 'utf8'), 'from a file');
    assert.equal((await fs.downloadFile('/tmp/many/empty')).length, 0);
    const [one, missing] = await fs.downloadFiles([{ source: '/tmp/many/one' }, { source: '/tmp/none' }]);
    assert.equal(one.result.toString(), 'from a file');
    assert.ok(missing.error);
    await fails(() => fs.downloadFile('/tmp/none'), sdk.DaytonaNotFoundError, /none/);
    await fs.uploadFileStream(Buffer.from('streamed'), '/tmp/streamed');
    const chunks: Buffer[] = [];
    for await (const chunk of await fs.downloadFileStream('/tmp/streamed')) chunks.push(chunk);
    assert.equal(Buffer.concat(chunks).toString(), 'streamed');
  });

  test('folders are listed, searched, changed and removed', async () => {
    const { fs } = sandbox;
    await fs.createFolder('/tmp/tree/deep', '755');
    await fs.uploadFile(Buffer.from('old words\n'), '/tmp/tree/deep/a.txt');
    const listed = await fs.listFiles('/tmp/tree');
    assert.deepEqual(
      listed.map(({ name, isDir }: Untyped) => [name, isDir]),
      [['deep', true]],
    );
    const match = { file: '/tmp/tree/deep/a.txt', line: 1, content: 'old words' };
    assert.deepEqual(await fs.findFiles('/tmp/tree', 'words'), [match]);
    assert.deepEqual((await fs.searchFiles('/tmp/tree', '*.txt')).files, [match.file]);
    const [replaced] = await fs.replaceInFiles([match.file], 'old', 'new');
    assert.equal(replaced.success, true);
    await fs.setFilePermissions(match.file, { mode: '600' });
    const details = await fs.getFileDetails(match.file);
    assert.deepEqual([details.size, details.isDir, details.permissions.slice(-3)], [10, false, '600']);
    assert.ok(!Number.isNaN(Date.parse(details.modifiedAt)));
    await fs.moveFiles(match.file, '/tmp/tree/b.txt');
    assert.equal((await fs.downloadFile('/tmp/tree/b.txt')).toString(), 'new words\n');
    await fs.deleteFile('/tmp/tree', true);
    await fails(() => fs.getFileDetails('/tmp/tree'), sdk.DaytonaNotFoundError, /tree/);
  });
});

test('LSP and computer use fail with 501 and name the operation', async () => {
  const { computerUse } = sandbox;
  const { mouse, keyboard, screenshot, display, recording, accessibility } = computerUse;
  const lsp = await sandbox.createLspServer('python', '/tmp');
  const region = { x: 0, y: 0, width: 1, height: 1 };
  const methods: [operation: string, () => Promise<unknown>][] = [
    ['POST /lsp/start', () => lsp.start()],
    ['POST /lsp/stop', () => lsp.stop()],
    ['POST /lsp/did-open', () => lsp.didOpen('/tmp/a')],
    ['POST /lsp/did-close', () => lsp.didClose('/tmp/a')],
    ['POST /lsp/completions', () => lsp.completions('/tmp/a', { line: 0, character: 0 })],
    ['GET /lsp/document-symbols', () => lsp.documentSymbols('/tmp/a')],
    ['GET /lsp/workspacesymbols', () => lsp.workspaceSymbols('a')],
    ['GET /lsp/workspacesymbols', () => lsp.sandboxSymbols('a')],
    ['POST /computeruse/start', () => computerUse.start()],
    ['POST /computeruse/stop', () => computerUse.stop()],
    ['GET /computeruse/process-status', () => computerUse.getStatus()],
    ['GET /computeruse/process/x/status', () => computerUse.getProcessStatus('x')],
    ['POST /computeruse/process/x/restart', () => computerUse.restartProcess('x')],
    ['GET /computeruse/process/x/logs', () => computerUse.getProcessLogs('x')],
    ['GET /computeruse/process/x/errors', () => computerUse.getProcessErrors('x')],
    ['GET /computeruse/mouse/position', () => mouse.getPosition()],
    ['POST /computeruse/mouse/move', () => mouse.move(1, 1)],
    ['POST /computeruse/mouse/click', () => mouse.click(1, 1)],
    ['POST /computeruse/mouse/drag', () => mouse.drag(1, 1, 2, 2)],
    ['POST /computeruse/mouse/scroll', () => mouse.scroll(1, 1, 'up')],
    ['POST /computeruse/keyboard/type', () => keyboard.type('x')],
    ['POST /computeruse/keyboard/key', () => keyboard.press('x')],
    ['POST /computeruse/keyboard/hotkey', () => keyboard.hotkey('x')],
    ['GET /computeruse/screenshot', () => screenshot.takeFullScreen()],
    ['GET /computeruse/screenshot/region', () => screenshot.takeRegion(region)],
    ['GET /computeruse/screenshot/compressed', () => screenshot.takeCompressed()],
    ['GET /computeruse/screenshot/region/compressed', () => screenshot.takeCompressedRegion(region)],
    ['GET /computeruse/display/info', () => display.getInfo()],
    ['GET /computeruse/display/windows', () => display.getWindows()],
    ['POST /computeruse/recordings/start', () => recording.start()],
    ['POST /computeruse/recordings/stop', () => recording.stop('x')],
    ['GET /computeruse/recordings', () => recording.list()],
    ['GET /computeruse/recordings/x', () => recording.get('x')],
    ['DELETE /computeruse/recordings/x', () => recording.delete('x')],
    ['GET /computeruse/a11y/tree', () => accessibility.getTree()],
    ['POST /computeruse/a11y/find', () => accessibility.findNodes()],
    ['POST /computeruse/a11y/node/focus', () => accessibility.focusNode('x')],
    ['POST /computeruse/a11y/node/invoke', () => accessibility.invokeNode('x')],
    ['POST /computeruse/a11y/node/value', () => accessibility.setNodeValue('x', 'y')],
  ];
  for (const [operation, call] of methods)
    await fails(call, sdk.DaytonaError, new RegExp(`^${operation} .*is not supported`), 501);
  // The SDK does not read the body of this one.
  const download = (): Promise<unknown> => recording.download('x', join(folder, 'recording'));
  await fails(download, sdk.DaytonaError, /object Object/, 501);
});

test('@computesdk/daytona works with it', async () => {
  const { api_key: apiKey, compat_url: url } = service.bootstrap;
  process.env['DAYTONA_API_URL'] = url;
  try {
    const { daytona: provider } = computeSdk();
    const compute = provider({ apiKey });
    assert.deepEqual(
      (await compute.sandbox.list()).map((one: Untyped) => one.sandboxId),
      [sandbox.id],
    );
    const found = await compute.sandbox.getById(sandbox.id);
    const { stdout, exitCode } = await found.runCommand(`sh -c 'echo $A; exit 2'`, { env: { A: 'b' } });
    assert.deepEqual([stdout.trim(), exitCode], ['b', 2]);
    await found.filesystem.writeFile('/tmp/compute', 'text');
    assert.equal(await found.filesystem.readFile('/tmp/compute'), 'text');
    assert.equal(await compute.sandbox.getById('nowhere'), null);
    assert.match(await found.getUrl({ port: 3000 }), new RegExp(`3000-${sandbox.id}`));
    await compute.sandbox.destroy(sandbox.id);
    await service.untilNoTraceOf(sandbox.id);
  } finally {
    delete process.env['DAYTONA_API_URL'];
  }
});

test('each method of these classes is tested', () => methods.assertComplete());
