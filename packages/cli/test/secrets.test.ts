import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import { describe, test } from 'node:test';
import { readSecret } from '../src/input/read-secret.ts';
import type { Context } from '../src/terminal.ts';
import { json, rlpHere } from './rlp.ts';
import { send, startService } from './service.ts';

describe('rlp secret', () => {
  test('set takes the value from stdin, without the line break at its end', async () => {
    await using service = await startService();
    const args = [
      'secret',
      'set',
      'TOKEN',
      '-d',
      'api.example.com',
      '-d',
      '*.example.org',
      '--description',
      'CI',
    ];
    assert.deepEqual(await rlpHere(service, args, { input: ' s3cret\nsecond line\n' }), {
      code: 0,
      stdout: 'TOKEN\n',
      stderr: '',
    });
    assert.deepEqual(service.kept.get('secrets/TOKEN'), {
      value: ' s3cret\nsecond line',
      allowed_domains: ['api.example.com', '*.example.org'],
      description: 'CI',
    });
    assert.equal(
      (await rlpHere(service, ['secret', 'set', 'B', '--json'], { input: 'x\r\n' })).stdout,
      '{\n  "name": "B"\n}\n',
    );
    assert.equal(service.kept.get('secrets/B')?.['value'], 'x');
  });

  test('a value that is empty, too large or no text, or a name that is none, is never sent', async () => {
    await using service = await startService();
    const wrong: [string, string | Buffer, RegExp][] = [
      ['A', '', /value of A is empty/],
      ['A', '\n', /value of A is empty/],
      ['A', 'x'.repeat(70_000), /more than 65536 bytes/],
      ['A', Buffer.from([0xff, 0xfe]), /not UTF-8/],
      ['1A', 'x', /has a name of letters/],
      ['../orgs', 'x', /has a name of letters/],
    ];
    for (const [name, input, said] of wrong) {
      const outcome = await rlpHere(service, ['secret', 'set', name], { input });
      assert.equal(outcome.code, 2);
      assert.match(outcome.stderr, said);
    }
    assert.equal(
      (await rlpHere(service, ['secret', 'set', 'A', 'value'], { input: '' })).code,
      2,
      'no value there',
    );
    assert.deepEqual(service.calls, []);
  });

  test('ls shows where it may be sent, and rm deletes', async () => {
    await using service = await startService();
    service.kept.set('secrets/A', { value: 'hidden', allowed_domains: ['a.example'] });
    service.kept.set('secrets/B', { value: 'hidden', allowed_domains: [], description: 'b\u001b' });
    const { stdout } = await rlpHere(service, ['secret', 'ls']);
    assert.match(stdout, /^NAME .*\nA +a\.example +\d+ s\nB +- +\d+ s +b\?\n$/);
    assert.doesNotMatch(stdout, /hidden/);
    assert.deepEqual(await rlpHere(service, ['secret', 'rm', 'A', 'C']), {
      code: 0,
      stdout: 'A\nC\n',
      stderr: '',
    });
    assert.deepEqual([...service.kept.keys()], ['secrets/B']);
    assert.equal((await rlpHere(service, ['secret', 'rm', ''])).code, 2);
  });

  test('run --secret gives it to the sandbox; what the service refuses is told', async () => {
    await using service = await startService();
    assert.equal(
      (await rlpHere(service, ['run', 'busybox', '--secret', 'A', '--secret', 'B', '--no-wait'])).code,
      0,
    );
    assert.deepEqual(service.bodies, [{ image: 'busybox', secrets: ['A', 'B'] }]);
    service.special.set('POST /vms', (_request, response) =>
      send(response, 400, { error: 'secret "C" not found' }),
    );
    const outcome = await rlpHere(service, ['run', 'busybox', '--secret', 'C']);
    assert.deepEqual([outcome.code, outcome.stderr], [1, 'rlp: secret "C" not found\n']);
    service.special.set('PUT /secrets/A', (_request, response) =>
      send(response, 503, { error: 'encryption is unavailable' }),
    );
    const away = await rlpHere(service, ['secret', 'set', 'A', '--json'], { input: 'x' });
    assert.deepEqual(JSON.parse(away.stderr), {
      error: 'encryption is unavailable',
      exit_code: 1,
      status: 503,
    });
  });
});

describe('rlp registry', () => {
  test('set takes the password from stdin; ls and rm', async () => {
    await using service = await startService();
    const args = ['registry', 'set', 'registry.example.com:5000', '-u', 'ci', '--kind', 'basic'];
    const set = await rlpHere(service, args, { input: 'hunter2\n' });
    assert.deepEqual(set, { code: 0, stdout: 'registry.example.com:5000\n', stderr: '' });
    assert.deepEqual(service.kept.get('registries/registry.example.com:5000'), {
      username: 'ci',
      password: 'hunter2',
      kind: 'basic',
    });
    const { stdout } = await rlpHere(service, ['registry', 'ls']);
    assert.match(stdout, /registry\.example\.com:5000 +basic +ci +\d+ s\n$/);
    assert.doesNotMatch(stdout, /hunter2/);
    assert.equal((await rlpHere(service, ['registry', 'ls', '--json'])).stdout.includes('hunter2'), false);
    assert.deepEqual(
      json(await rlpHere(service, ['registry', 'rm', 'registry.example.com:5000', '--json'])),
      [{ registry: 'registry.example.com:5000', status: 'deleted' }],
    );
    assert.equal(service.kept.size, 0);
  });

  test('without a user, of another kind, or for what is no host', async () => {
    await using service = await startService();
    const input = 'x';
    assert.equal((await rlpHere(service, ['registry', 'set', 'ghcr.io'], { input })).code, 2);
    assert.equal(
      (await rlpHere(service, ['registry', 'set', 'ghcr.io', '-u', 'a', '--kind', 'x'], { input })).code,
      2,
    );
    const url = await rlpHere(service, ['registry', 'set', 'https://ghcr.io', '-u', 'a'], { input });
    assert.deepEqual(
      [url.code, url.stderr],
      [1, 'rlp: host must be host[:port], but was "https://ghcr.io"\n'],
    );
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
