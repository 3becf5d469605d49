import assert from 'node:assert/strict';
import { mkdtemp, rm, symlink } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { home } from './home.ts';
import { BIN, rlp, rlpHere } from './rlp.ts';
import { KEY, send, startService } from './service.ts';

describe('which service', () => {
  test('flags win over the environment, and that over bootstrap.json', async () => {
    await using service = await startService();
    await using folder = await home(null, {
      'bootstrap.json': JSON.stringify({ base_url: `${service.url}/`, api_key: KEY }),
    });
    const wrong = { RELEAP_URL: 'http://127.0.0.1:2', RELEAP_API_KEY: 'rlp_wrong' };
    assert.equal((await rlp(null, ['ps'], { env: { RELEAP_HOME: folder.path } })).code, 0);
    assert.equal((await rlp(null, ['ps'], { env: { RELEAP_HOME: folder.path, ...wrong } })).code, 3);
    const flags = ['--url', service.url, '--api-key', KEY];
    assert.equal((await rlp(null, [...flags, 'ps'], { env: wrong })).code, 0);
    assert.equal((await rlp(null, ['ps', ...flags], { env: wrong })).code, 0);
  });

  test("the key of this machine's server is never told to another one", async () => {
    await using service = await startService();
    await using folder = await home(null, {
      'bootstrap.json': JSON.stringify({ base_url: 'http://127.0.0.1:2', api_key: 'rlp_secret' }),
    });
    const outcome = await rlp(null, ['ps', '--url', service.url], { env: { RELEAP_HOME: folder.path } });
    assert.equal(outcome.code, 3);
    assert.match(outcome.stderr, /no API key is configured for/);
    assert.deepEqual(service.calls, []);
  });

  test('without any, the error says what to set', async () => {
    const outcome = await rlp(null, ['ps']);
    assert.equal(outcome.code, 3);
    assert.match(outcome.stderr, /RELEAP_URL.*RELEAP_API_KEY.*\/nonexistent\/bootstrap\.json/);
  });

  test('a broken bootstrap.json is told without its contents', async () => {
    await using folder = await home(null, { 'bootstrap.json': '{"api_key": "rlp_secret", oops' });
    const outcome = await rlp(null, ['ps'], { env: { RELEAP_HOME: folder.path } });
    assert.equal(outcome.code, 3);
    assert.match(outcome.stderr, /is not what a server writes/);
    assert.doesNotMatch(outcome.stderr, /rlp_secret/);
  });

  test('a URL or key of the wrong form is refused', async () => {
    for (const url of ['ftp://x', 'nonsense', 'http://user:pass@x'])
      assert.equal((await rlp(null, ['ps', '--url', url, '--api-key', 'k'])).code, 2);
    const outcome = await rlp(null, ['ps', '--url', 'http://x', '--api-key', 'a b\nsecret']);
    assert.equal(outcome.code, 2);
    assert.doesNotMatch(outcome.stderr, /secret/);
  });
});

describe('a service that is not well', () => {
  test('nobody listens', async () => {
    const outcome = await rlp(null, ['ps', '--url', 'http://127.0.0.1:2', '--api-key', 'k']);
    assert.deepEqual(outcome, {
      code: 3,
      stdout: '',
      stderr: 'rlp: cannot reach http://127.0.0.1:2: nothing listens there. Is the service running?\n',
    });
  });

  test('a refused key', async () => {
    await using service = await startService();
    const outcome = await rlp(service, ['ps', '--api-key', 'rlp_wrong']);
    assert.deepEqual(outcome, { code: 3, stdout: '', stderr: 'rlp: invalid API key\n' });
  });

  test('that has had enough for the moment: a read is repeated when it says, a change is not', async () => {
    await using service = await startService();
    let refused = 0;
    const full = (request: IncomingMessage, response: ServerResponse): unknown => {
      if (refused++ > 0 && request.method === 'GET') return false;
      response.setHeader('retry-after', '1');
      return send(response, 429, { error: 'too many requests' });
    };
    service.special.set('GET /vms', full);
    assert.equal((await rlpHere(service, ['ps'])).code, 0);
    assert.deepEqual(service.calls, ['GET /vms', 'GET /vms']);
    service.special.set('DELETE /secrets/A', full);
    const change = await rlpHere(service, ['secret', 'rm', 'A']);
    assert.deepEqual([change.code, change.stderr], [1, 'rlp: too many requests\n']);
  });

  test('something else that listens there', async () => {
    await using service = await startService();
    service.special.set('GET /vms', (_request, response) => void response.end('<html>hello</html>'));
    assert.match((await rlp(service, ['ps'])).stderr, /is it a Releap service/);
    service.special.set('GET /vms', (_request, response) => void response.end('{"hello": 1}'));
    assert.match((await rlp(service, ['ps'])).stderr, /is it a Releap service/);
    service.special.set('GET /vms', (_request, response) => void response.writeHead(502).end('bad gateway'));
    assert.match((await rlp(service, ['ps'])).stderr, /answered 502 to \/vms/);
  });

  test('a server that hangs up', async () => {
    const server = createServer((socket) => socket.destroy()).listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    const address = server.address();
    const port = typeof address === 'object' && address ? address.port : 0;
    const outcome = await rlp(null, ['ps', '--url', `http://127.0.0.1:${port}`, '--api-key', 'k']);
    server.close();
    assert.equal(outcome.code, 3);
    assert.match(outcome.stderr, /the connection was cut/);
  });

  test('with --json errors are JSON too, on stderr', async () => {
    await using service = await startService();
    const outcome = await rlp(service, ['logs', 'nobody', '--json']);
    assert.equal(outcome.stdout, '');
    const error = JSON.parse(outcome.stderr) as Record<string, unknown>;
    assert.equal(error['exit_code'], 4);
    assert.equal(error['status'], 404);
    assert.match(String(error['error']), /nobody/);
  });
});

describe('the program', () => {
  test('starts through symbolic links from any folder', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'rlp-bin-'));
    try {
      await symlink(BIN, join(folder, 'one'));
      await symlink('one', join(folder, 'two'));
      const outcome = await rlp(null, ['--version'], { bin: join(folder, 'two') });
      assert.equal(outcome.code, 0, outcome.stderr);
      assert.match(outcome.stdout, /^\d+\.\d+\.\d+\n$/);
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  test('without a command shows its help and ends in 2; with --help in 0', async () => {
    const bare = await rlp(null, []);
    assert.equal(bare.code, 2);
    assert.match(bare.stdout, /run .*exec .*ps .*logs .*cp .*rm .*images .*doctor /s);
    assert.equal((await rlp(null, ['run', '--help'])).code, 0);
    const unknown = await rlp(null, ['dance']);
    assert.equal(unknown.code, 2);
    assert.match(unknown.stderr, /^rlp: unknown command 'dance'\n$/);
  });

  test('doctor tells about this machine in text and JSON', async () => {
    const outcome = await rlp(null, ['doctor', '--no-trial', '--json']);
    const report = JSON.parse(outcome.stdout) as {
      ready: boolean;
      checks: { id: string; status: string; detail: string }[];
      packages: string[];
    };
    assert.equal(outcome.code, report.ready ? 0 : 1);
    const ids = report.checks.map((check) => check.id);
    for (const id of [
      'accelerator',
      'cgroup',
      'reflink',
      'netns',
      'tun',
      'nftables',
      'postgres',
      'node',
      'go',
    ])
      assert.ok(ids.includes(id), id);
    assert.ok(report.checks.every((check) => check.detail !== ''));
  });
});
