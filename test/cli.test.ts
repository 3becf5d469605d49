import assert from 'node:assert/strict';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { Browser } from '@releap/testing/browser';
import { eventually } from '@releap/testing/eventually';
import { leftovers } from '@releap/testing/leftovers';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';
import { terminal } from './support/terminal.ts';

const SIZE = ['--cpu', '1', '--mem', '256', '--scratch', '64'];

describe('rlp, against a live service', () => {
  let service: Service;
  let folder: string;
  const { start, rlp, output } = terminal(() => ({ service, folder }));
  before(async () => {
    folder = await temporaryFolder('releap-cli-');
    service = await sharedService();
  });
  after(async () => {
    await service?.[Symbol.asyncDispose]();
    await rm(folder, { recursive: true, force: true });
  });

  /** A sandbox that is being deleted is listed until it is gone. */
  async function noneListed(): Promise<void> {
    await eventually('an empty list', async () => ((await output(['ps', '-q'])) === '' ? true : undefined));
  }

  test('run --rm: a command in a new sandbox, its output and exit code, and nothing is left', async () => {
    const { code, stdout, stderr } = await rlp([
      'run',
      '--rm',
      ...SIZE,
      '-e',
      'WHO=world',
      'busybox',
      '--',
      'sh',
      '-c',
      'echo "hello $WHO"; echo oops >&2; uname -s; exit 7',
    ]);
    assert.equal(stdout, 'hello world\nLinux\n');
    assert.match(stderr, /^oops$/m);
    assert.equal(code, 7);
    await noneListed();
  });

  test('run without a command: the sandbox stays, under its name', async () => {
    const id = (await output(['run', '--name', 'demo', ...SIZE, '-p', '8000', 'busybox'])).trim();
    const listed = await output(['ps']);
    assert.match(listed, new RegExp(`${id}\\s+demo\\s+busybox\\s+running`));
    const [vm] = JSON.parse(await output(['--json', 'ps'])) as { id: string; status: string }[];
    assert.deepEqual([vm?.id, vm?.status], [id, 'running']);
  });

  test('exec: streams, input, exit code, environment, folder and user', async () => {
    assert.equal(await output(['exec', 'demo', '--', 'echo', '6 * 7 = 42']), '6 * 7 = 42\n');
    assert.equal(await output(['exec', 'demo', '--', 'wc', '-c'], 'some input'), '10\n');
    assert.equal((await rlp(['exec', 'demo', '--', 'sh', '-c', 'exit 5'])).code, 5);
    assert.equal(
      await output([
        'exec',
        '-e',
        'A=b c',
        '-w',
        '/tmp',
        '-u',
        'nobody',
        'demo',
        '--',
        'sh',
        '-c',
        'echo $A; pwd; id -un',
      ]),
      'b c\n/tmp\nnobody\n',
    );
    const missing = await rlp(['exec', 'demo', '--', 'no-such-program']);
    assert.notEqual(missing.code, 0);
    assert.match(missing.stderr, /no-such-program/);
  });

  test('cp: files and folders, both ways', async () => {
    await writeFile(join(folder, 'README.md'), 'one\ntwo\nthree\n');
    await output(['cp', 'README.md', 'demo:/tmp/']);
    assert.match(await output(['exec', 'demo', '--', 'wc', '-l', '/tmp/README.md']), /^3 /);
    await output(['cp', 'demo:/tmp/README.md', 'back.md']);
    assert.equal(await readFile(join(folder, 'back.md'), 'utf8'), 'one\ntwo\nthree\n');
    await mkdir(join(folder, 'tree/deep'), { recursive: true });
    await writeFile(join(folder, 'tree/deep/leaf'), 'green');
    await output(['cp', 'tree', 'demo:/srv/']);
    assert.equal(await output(['exec', 'demo', '--', 'cat', '/srv/tree/deep/leaf']), 'green');
    await output(['cp', 'demo:/srv/tree', 'copy']);
    assert.equal(await readFile(join(folder, 'copy/deep/leaf'), 'utf8'), 'green');
    assert.notEqual((await rlp(['cp', 'demo:/no/such', 'x'])).code, 0);
  });

  test('logs -f: past and new lines, until the sandbox ends; rm ends it', async () => {
    const following = start(['logs', '-f', '--console', 'demo']);
    following.child.stdin?.end();
    await eventually('the beginning', () =>
      following.outcome.stdout.includes('root image') ? true : undefined,
    );
    await output(['exec', 'demo', '--', 'sh', '-c', 'echo "from the guest" > /dev/console']);
    await eventually('the guest', () =>
      following.outcome.stdout.includes('from the guest') ? true : undefined,
    );
    await output(['rm', '--wait', 'demo']);
    const { code, stdout, stderr } = await following.ended;
    assert.equal(code, 0, stderr);
    assert.equal(stdout.split('from the guest').length, 2, 'nothing is printed twice');
    assert.equal(await output(['ps', '-q']), '');
  });

  test('errors are sentences, with an exit code of their own', async () => {
    const gone = await rlp(['exec', 'demo', '--', 'true']);
    assert.match(gone.stderr, /^rlp: .*demo/m);
    assert.equal(gone.stdout, '');
    const unknown = await rlp(['run', '--rm', ...SIZE, 'no-such-image', '--', 'true']);
    assert.match(unknown.stderr, /no-such-image/);
    assert.notEqual(unknown.code, 0);
    const impossible = await rlp(['run', '--rm', ...SIZE, '--arch', 'arm64', 'busybox', '--', 'true']);
    assert.match(impossible.stderr, /architecture arm64/);
    assert.notEqual(impossible.code, 0);
    const json = await rlp(['--json', 'rm', 'demo']);
    assert.notEqual(json.code, 0);
  });

  test('fork, snapshot, run --from-snapshot: copies have the state of one sandbox; host ls counts them', async () => {
    const id = (await output(['run', ...SIZE, '--persistent', '--name', 'origin', 'busybox'])).trim();
    await output(['exec', 'origin', '--', 'sh', '-c', 'echo kept > /root/file; echo here > /dev/shm/file']);
    const fork = (await output(['fork', 'origin', '--name', 'copy'])).trim();
    assert.notEqual(fork, id);
    const snapshot = (await output(['snapshot', 'create', 'origin', 'warm'])).trim();
    assert.match(await output(['snapshot', 'ls']), new RegExp(`^warm +full +ready .* ${snapshot}`, 'm'));
    const restored = ['run', '--rm', '--from-snapshot', 'warm', '--', 'cat', '/root/file', '/dev/shm/file'];
    assert.equal(await output(restored), 'kept\nhere\n');
    assert.equal(await output(['exec', 'copy', '--', 'cat', '/root/file', '/dev/shm/file']), 'kept\nhere\n');
    assert.match(await output(['host', 'ls']), /online .* 2 running/);
    await output(['rm', '--wait', 'origin', 'copy']);
    await output(['snapshot', 'rm', 'warm']);
    await noneListed();
  });

  test('login, org and project create, project use: a new user runs a sandbox in their own project', async () => {
    const login = start(['login']);
    login.child.stdin?.end();
    const address = await eventually(
      'the address to sign in at',
      () => /^ {2}(http\S+)$/m.exec(login.outcome.stderr)?.[1],
    );
    const browser = new Browser();
    const page = await browser.submit(await browser.open(address), { email: 'ada@example.com', name: 'Ada' });
    assert.match(await (await fetch(page.url)).text(), /Signed in/);
    assert.equal((await login.ended).code, 0, login.outcome.stderr);
    await output(['org', 'create', 'Office']);
    const project = (await output(['project', 'create', 'web', '--org', 'Office'])).trim();
    await output(['project', 'use', 'web']);
    assert.match(await output(['whoami']), new RegExp(`^ada@example\\.com .*\nproject web \\(${project}\\)`));
    await output(['run', ...SIZE, '--name', 'mine', 'busybox']);
    assert.equal(await output(['exec', 'mine', '--', 'echo', 'hello']), 'hello\n');
    await output(['project', 'use', '--none']);
    assert.equal(await output(['ps', '-q']), '', 'of the first project');
    await output(['org', 'rm', 'Office']);
    assert.doesNotMatch(await output(['project', 'ls']), /web/);
    await output(['logout']);
    assert.equal((await rlp(['whoami'])).code, 3);
  });

  test('interrupted while a command runs, run --rm still deletes the sandbox', async () => {
    const { child, outcome, ended } = start([
      'run',
      '--rm',
      ...SIZE,
      'busybox',
      '--',
      'sh',
      '-c',
      'echo begun; sleep 1000',
    ]);
    await eventually('the command', () => (outcome.stdout.includes('begun') ? true : undefined));
    child.kill('SIGINT');
    assert.notEqual((await ended).code, 0);
    await noneListed();
  });

  test('the service stops and leaves nothing', async (t) => {
    if (service.shared) return t.skip('asserted when the run stops the service that files share');
    assert.equal(await service.stop(), 0);
    assert.deepEqual(await leftovers(service.home), []);
  });
});
