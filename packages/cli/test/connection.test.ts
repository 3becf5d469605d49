import assert from 'node:assert/strict';
import { mkdtemp, rm, symlink } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { home } from './home.ts';
import { type Relay, sendJson, startRelay } from './relay.ts';
import { BIN, rlp, rlpHere, type Target } from './rlp.ts';
import { startService } from './world.ts';

const service = await startService();
const project = await service.project();

/** A relay to the service, with a key of a project. */
async function relayed(): Promise<Relay & Target> {
  return Object.assign(await startRelay({ url: project.url }), { key: project.key });
}

describe('which service', () => {
  test('flags win over the environment, and that over bootstrap.json', async () => {
    await using folder = await home(null, {
      'bootstrap.json': JSON.stringify({ base_url: `${project.url}/`, api_key: project.key }),
    });
    const wrong = { RELEAP_URL: 'http://127.0.0.1:2', RELEAP_API_KEY: 'rlp_wrong' };
    assert.equal((await rlpHere(null, ['ps'], { env: { RELEAP_HOME: folder.path } })).code, 0);
    assert.equal((await rlpHere(null, ['ps'], { env: { RELEAP_HOME: folder.path, ...wrong } })).code, 3);
    const flags = ['--url', project.url, '--api-key', project.key];
    assert.equal((await rlpHere(null, [...flags, 'ps'], { env: wrong })).code, 0);
    assert.equal((await rlpHere(null, ['ps', ...flags], { env: wrong })).code, 0);
  });

  test("the key of this machine's server is never sent to another one", async () => {
    await using relay = await relayed();
    await using folder = await home(null, {
      'bootstrap.json': JSON.stringify({ base_url: 'http://127.0.0.1:2', api_key: 'rlp_secret' }),
    });
    const outcome = await rlpHere(null, ['ps', '--url', relay.url], { env: { RELEAP_HOME: folder.path } });
    assert.equal(outcome.code, 3);
    assert.match(outcome.stderr, /no API key is configured for/);
    assert.deepEqual(relay.calls, []);
  });

  test('without any, the error says what to set', async () => {
    const outcome = await rlpHere(null, ['ps']);
    assert.equal(outcome.code, 3);
    assert.match(outcome.stderr, /RELEAP_URL.*RELEAP_API_KEY.*\/nonexistent\/bootstrap\.json/);
  });

  test('a malformed bootstrap.json is reported without its contents', async () => {
    await using folder = await home(null, { 'bootstrap.json': '{"api_key": "rlp_secret", oops' });
    const outcome = await rlpHere(null, ['ps'], { env: { RELEAP_HOME: folder.path } });
    assert.equal(outcome.code, 3);
    assert.match(outcome.stderr, /is not what a server writes/);
    assert.doesNotMatch(outcome.stderr, /rlp_secret/);
  });

  test('a URL or key of the wrong form is refused', async () => {
    for (const url of ['ftp://x', 'nonsense', 'http://user:pass@x'])
      assert.equal((await rlpHere(null, ['ps', '--url', url, '--api-key', 'k'])).code, 2);
    const outcome = await rlpHere(null, ['ps', '--url', 'http://x', '--api-key', 'a b\nsecret']);
    assert.equal(outcome.code, 2);
    assert.doesNotMatch(outcome.stderr, /secret/);
  });
});

describe('an unhealthy service', () => {
  test('that nothing listens on', async () => {
    const outcome = await rlpHere(null, ['ps', '--url', 'http://127.0.0.1:2', '--api-key', 'k']);
    assert.deepEqual(outcome, {
      code: 3,
      stdout: '',
      stderr: 'rlp: cannot reach http://127.0.0.1:2: nothing listens there. Is the service running?\n',
    });
  });

  test('a refused key', async () => {
    const { code, stdout, stderr } = await project.rlp(['ps', '--api-key', 'rlp_wrong']);
    assert.deepEqual([code, stdout], [3, '']);
    assert.match(stderr, /^rlp: .*API key.*\n$/);
  });

  test('that is rate limited: a read is repeated after Retry-After, a change is not', async () => {
    await using relay = await relayed();
    let refused = 0;
    const full = (request: IncomingMessage, response: ServerResponse): unknown => {
      if (refused++ > 0 && request.method === 'GET') return false;
      response.setHeader('retry-after', '1');
      return sendJson(response, 429, { error: 'too many requests' });
    };
    relay.answers.set('GET /vms', full);
    assert.equal((await rlpHere(relay, ['ps'])).code, 0);
    assert.deepEqual(relay.calls, ['GET /vms', 'GET /vms']);
    relay.answers.set('DELETE /secrets/A', full);
    const change = await rlpHere(relay, ['secret', 'rm', 'A']);
    assert.deepEqual([change.code, change.stderr], [1, 'rlp: too many requests\n']);
  });

  test('another kind of server at that address', async () => {
    await using relay = await relayed();
    relay.answers.set('GET /vms', (_request, response) => void response.end('<html>hello</html>'));
    assert.match((await rlpHere(relay, ['ps'])).stderr, /is it a Releap service/);
    relay.answers.set('GET /vms', (_request, response) => void response.end('{"hello": 1}'));
    assert.match((await rlpHere(relay, ['ps'])).stderr, /is it a Releap service/);
    relay.answers.set('GET /vms', (_request, response) => void response.writeHead(502).end('bad gateway'));
    assert.match((await rlpHere(relay, ['ps'])).stderr, /answered 502 to \/vms/);
  });

  test('a server that closes the connection', async () => {
    const server = createServer((socket) => socket.destroy()).listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    const address = server.address();
    const port = typeof address === 'object' && address ? address.port : 0;
    const outcome = await rlpHere(null, ['ps', '--url', `http://127.0.0.1:${port}`, '--api-key', 'k']);
    server.close();
    assert.equal(outcome.code, 3);
    assert.match(outcome.stderr, /the connection was cut/);
  });

  test('with --json errors are JSON too, on stderr', async () => {
    const outcome = await project.rlp(['logs', 'nobody', '--json']);
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

  test('doctor describes this machine in text and JSON', async () => {
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
      'volumes',
    ])
      assert.ok(ids.includes(id), id);
    assert.ok(report.checks.every((check) => check.detail !== ''));
  });
});
