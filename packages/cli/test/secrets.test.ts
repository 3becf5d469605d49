import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import { describe, test } from 'node:test';
import { testKeys } from '@releap/testing/keys';
import { readSecret } from '../src/input/read-secret.ts';
import type { Context } from '../src/terminal.ts';
import { startRelay } from './relay.ts';
import { json, rlpHere } from './rlp.ts';
import { type Project, startService } from './world.ts';

const keys = testKeys();
const service = await startService({ keys });

interface Secret {
  name: string;
  allowed_domains: string[];
  description?: string;
}
async function secrets(project: Project): Promise<Secret[]> {
  return (await project.call('GET', '/secrets')).body.secrets as Secret[];
}

describe('rlp secret', () => {
  test('set takes the value from stdin, without the line break at its end', async () => {
    const project = await service.project();
    await using relay = await startRelay({ url: project.url });
    const set = (args: string[], input: string) =>
      rlpHere({ url: relay.url, key: project.key }, ['secret', 'set', ...args], { input });
    const args = ['TOKEN', '-d', 'api.example.com', '-d', '*.example.org', '--description', 'CI'];
    assert.deepEqual(await set(args, ' s3cret\nsecond line\n'), {
      code: 0,
      stdout: 'TOKEN\n',
      stderr: '',
    });
    const [{ name, allowed_domains, description } = { name: '', allowed_domains: [] }] =
      await secrets(project);
    assert.deepEqual(
      [name, allowed_domains, description],
      ['TOKEN', ['api.example.com', '*.example.org'], 'CI'],
    );
    assert.equal((await set(['B', '--json'], 'x\r\n')).stdout, '{\n  "name": "B"\n}\n');
    // The service never returns a value: the request has it.
    const sent = ['TOKEN', 'B'].map(
      (one) => (JSON.parse(relay.bodies.get(`PUT /secrets/${one}`) ?? '') as { value: string }).value,
    );
    assert.deepEqual(sent, [' s3cret\nsecond line', 'x']);
  });

  test('a value that is empty, too large or no text, or an invalid name, is never sent', async () => {
    const project = await service.project();
    await using relay = await startRelay({ url: project.url });
    const target = { url: relay.url, key: project.key };
    const wrong: [string, string | Buffer, RegExp][] = [
      ['A', '', /value of A is empty/],
      ['A', '\n', /value of A is empty/],
      ['A', 'x'.repeat(70_000), /more than 65536 bytes/],
      ['A', Buffer.from([0xff, 0xfe]), /not UTF-8/],
      ['1A', 'x', /has a name of letters/],
      ['../orgs', 'x', /has a name of letters/],
    ];
    for (const [name, input, said] of wrong) {
      const outcome = await rlpHere(target, ['secret', 'set', name], { input });
      assert.equal(outcome.code, 2);
      assert.match(outcome.stderr, said);
    }
    assert.equal(
      (await rlpHere(target, ['secret', 'set', 'A', 'value'], { input: '' })).code,
      2,
      'no value there',
    );
    assert.deepEqual(relay.calls, []);
  });

  test('ls shows where it may be sent, and rm deletes', async () => {
    const project = await service.project();
    const put = (name: string, body: object) =>
      project.call('PUT', `/secrets/${name}`, { value: 'hidden', ...body });
    assert.equal((await put('A', { allowed_domains: ['a.example'] })).status, 204);
    assert.equal((await put('B', { description: 'b\u202e' })).status, 204);
    const { stdout } = await project.rlp(['secret', 'ls']);
    assert.match(stdout, /^NAME .*\nA +a\.example +\d+ s\nB +- +\d+ s +b\?\n$/);
    assert.doesNotMatch(stdout, /hidden/);
    assert.deepEqual(await project.rlp(['secret', 'rm', 'A', 'C']), {
      code: 0,
      stdout: 'A\nC\n',
      stderr: '',
    });
    assert.deepEqual(
      (await secrets(project)).map(({ name }) => name),
      ['B'],
    );
    assert.equal((await project.rlp(['secret', 'rm', ''])).code, 2);
  });

  test('run --secret gives it to the sandbox; a refusal of the service is printed', async () => {
    const project = await service.project();
    for (const name of ['A', 'B'])
      assert.equal((await project.rlp(['secret', 'set', name], { input: `of ${name}` })).code, 0);
    const run = await project.rlp(['run', 'busybox', '--secret', 'A', '--secret', 'B', '--no-wait']);
    assert.equal(run.code, 0, run.stderr);
    const uuid = project.uuidOf(run.stdout.trim());
    // A sandbox gets placeholders, which are replaced by the values on their way out.
    const { env } = (await service.runner.assigned(uuid)).spec;
    assert.deepEqual(Object.keys(env).sort(), ['A', 'B']);
    const outcome = await project.rlp(['run', 'busybox', '--secret', 'C']);
    assert.equal(outcome.code, 1);
    assert.match(outcome.stderr, /^rlp: secrets: the project has no secret "C"/);
  });

  test('a service that cannot encrypt: its error and its status', async () => {
    await using keyless = await startService();
    const project = await keyless.project();
    const away = await project.rlp(['secret', 'set', 'A', '--json'], { input: 'x' });
    assert.equal(away.code, 1);
    const said = JSON.parse(away.stderr) as { error: string };
    assert.deepEqual(said, { error: said.error, exit_code: 1, status: 503, code: 'unavailable' });
    assert.match(said.error, /encrypt/);
  });
});

describe('rlp registry', () => {
  test('set takes the password from stdin; ls and rm', async () => {
    const project = await service.project();
    const args = ['registry', 'set', 'registry.example.com:5000', '-u', 'ci', '--kind', 'basic'];
    const set = await project.rlp(args, { input: 'hunter2\n' });
    assert.deepEqual(set, { code: 0, stdout: 'registry.example.com:5000\n', stderr: '' });
    // What a host is given that pulls from there.
    assert.equal((await project.rlp(['images', 'create', 'app', 'registry.example.com:5000/app:1'])).code, 0);
    const [job] = service.runner.builds.slice(-1);
    assert.deepEqual(job?.root.type === 'registry' && job.root.credential, {
      kind: 'basic',
      username: 'ci',
      password: 'hunter2',
    });
    const { stdout } = await project.rlp(['registry', 'ls']);
    assert.match(stdout, /registry\.example\.com:5000 +basic +ci +\d+ s\n$/);
    assert.doesNotMatch(stdout, /hunter2/);
    assert.equal((await project.rlp(['registry', 'ls', '--json'])).stdout.includes('hunter2'), false);
    assert.deepEqual(json(await project.rlp(['registry', 'rm', 'registry.example.com:5000', '--json'])), [
      { registry: 'registry.example.com:5000', status: 'deleted' },
    ]);
    assert.equal((await project.rlp(['registry', 'ls', '--json'])).stdout, '[]\n');
  });

  test('without a user, of another kind, or for an invalid host', async () => {
    const project = await service.project();
    const input = 'x';
    assert.equal((await project.rlp(['registry', 'set', 'ghcr.io'], { input })).code, 2);
    assert.equal(
      (await project.rlp(['registry', 'set', 'ghcr.io', '-u', 'a', '--kind', 'x'], { input })).code,
      2,
    );
    const url = await project.rlp(['registry', 'set', 'https://ghcr.io', '-u', 'a'], { input });
    assert.equal(url.code, 1);
    assert.match(url.stderr, /^rlp: registry host "https:\/\/ghcr\.io" has a scheme/);
  });
});

describe('a secret that is typed in', () => {
  async function typed(
    ...chunks: (string | Buffer)[]
  ): Promise<{ value: string; shown: string; modes: boolean[] }> {
    const stdin = Object.assign(new PassThrough(), {
      isTTY: true,
      setRawMode: (on: boolean) => void modes.push(on),
    });
    const modes: boolean[] = [];
    const stderr = new PassThrough();
    const context = {
      terminal: { stdin, stderr, stdout: stderr, env: {} },
      signal: new AbortController().signal,
    };
    const reading = readSecret(context as unknown as Context, 'password');
    for (const chunk of chunks) stdin.write(chunk);
    const value = await reading.catch((error: unknown) => String(error));
    return { value, shown: String(stderr.read()), modes };
  }

  test('is not shown, can be corrected, and leaves the terminal as it was', async () => {
    assert.deepEqual(await typed('geheim', '\u007f\u007f', 'M\r', 'more'), {
      value: 'geheM',
      shown: 'password: \n',
      modes: [true, false],
    });
    assert.equal((await typed('wrong\u0015right\n')).value, 'right');
    const [first, second] = [Buffer.from('ü').subarray(0, 1), Buffer.from('ü').subarray(1)];
    assert.equal((await typed(first, second, '\n')).value, 'ü');
  });

  test('Ctrl-C interrupts, nothing is refused', async () => {
    const stopped = await typed('half\u0003');
    assert.match(stopped.value, /interrupted/);
    assert.deepEqual(stopped.modes, [true, false]);
    assert.match((await typed('\r')).value, /password is empty/);
  });
});
