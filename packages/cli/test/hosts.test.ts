import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmod, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { home, type Home } from './home.ts';
import { json, type Outcome, rlpHere } from './rlp.ts';
import { sendForeign, startService } from './service.ts';
import { addHost, OPERATOR_TOKEN } from './service-hosts.ts';

function host(folder: Home, args: string[], env: Record<string, string> = {}): Promise<Outcome> {
  return rlpHere(null, ['host', ...args], { env: { RELEAP_HOME: folder.path, ...env } });
}

describe('rlp host ls', () => {
  test('lists hosts with what they hold', async () => {
    await using service = await startService();
    await using folder = await home(service);
    const one = addHost(service, { sandboxes: { running: 3, paused: 1 }, snapshots: 2 });
    addHost(service, { draining: true, status: 'lost' });
    addHost(service, { ready: false, last_seen_at: 'never' });
    service.special.set('GET /operator/hosts', (_request, response) =>
      sendForeign(response, 200, { hosts: service.hosts }),
    );
    const { code, stdout } = await host(folder, ['ls']);
    assert.equal(code, 0);
    const rows = stdout
      .trim()
      .split('\n')
      .map((line) => line.split(/\s{2,}/));
    assert.deepEqual(rows[0], [
      'ID',
      'REGION',
      'STATUS',
      'SEEN',
      'CPU',
      'MEM',
      'DISK',
      'SANDBOXES',
      'SNAPSHOTS',
    ]);
    assert.deepEqual(
      [rows[1]?.[0], rows[1]?.[2], rows[1]?.[7], rows[1]?.[8]],
      [one.id, 'online', '3 running, 1 paused', '2'],
    );
    assert.deepEqual([rows[2]?.[2], rows[3]?.[2], rows[3]?.[3]], ['lost, drained', 'not ready', '-']);
    assert.equal((JSON.parse((await host(folder, ['--json'])).stdout) as unknown[]).length, 3);
  });
});

describe('rlp host drain', () => {
  test('tells what becomes of each sandbox', async () => {
    await using service = await startService();
    await using folder = await home(service);
    const { id } = addHost(service);
    const kept = service.add('kept', { runner_id: id, persistent: true });
    const other = service.add('other', { runner_id: id });
    const { code, stdout } = await host(folder, ['drain', id.slice(0, 8)]);
    assert.equal(code, 0);
    assert.match(stdout, new RegExp(`${kept.id} +pausing\\n${other.id} +stays running, not persistent\\n`));
    assert.deepEqual(service.bodies, [{}]);
  });

  test('--force deletes what is not persistent, --wait returns when nothing runs there', async () => {
    await using service = await startService();
    await using folder = await home(service);
    const { id } = addHost(service);
    service.add('kept', { runner_id: id, persistent: true });
    service.add('other', { runner_id: id });
    const outcome = await host(folder, ['drain', id, '--force', '--wait', '--json']);
    assert.equal(outcome.code, 0, outcome.stderr);
    const drained = json(outcome)['host'] as { sandboxes: unknown; draining: boolean };
    assert.deepEqual([drained.sandboxes, drained.draining], [{ paused: 1 }, true]);
    assert.deepEqual(service.bodies, [{ force: true }]);
  });

  test('gives up waiting when its time is over, and when somebody takes the host back', async () => {
    await using service = await startService();
    await using folder = await home(service);
    const { id } = addHost(service);
    service.add('other', { runner_id: id });
    const late = await host(folder, ['drain', id, '--wait', '--wait-timeout', '1s']);
    assert.equal(late.code, 1);
    assert.match(late.stderr, /still has sandboxes \(1 running\) after 1 s; it goes on draining without us/);
    const back = host(folder, ['drain', id, '--wait']);
    const timer = setInterval(() => {
      // Once it has been asked for again, and looked for afterwards.
      const asked = service.calls.findLastIndex((call) => call.endsWith('/drain'));
      if (service.bodies.length < 2 || !service.calls.slice(asked).includes('GET /operator/hosts')) return;
      clearInterval(timer);
      Object.assign(service.hosts[0] ?? {}, { draining: false });
    }, 20);
    assert.match((await back).stderr, /is not draining any more/);
  });

  test('undrain takes it back', async () => {
    await using service = await startService();
    await using folder = await home(service);
    const { id } = addHost(service, { draining: true });
    assert.deepEqual(await host(folder, ['undrain', id]), { code: 0, stdout: `${id}\n`, stderr: '' });
    assert.equal(service.hosts[0]?.draining, false);
  });

  test('a host that is unknown, or that could be two', async () => {
    await using service = await startService();
    await using folder = await home(service);
    addHost(service, { id: 'aaaa0000-0000-4000-8000-000000000001' });
    addHost(service, { id: 'aaaa0000-0000-4000-8000-000000000002' });
    const unknown = await host(folder, ['drain', 'bbbb']);
    assert.deepEqual(
      [unknown.code, unknown.stderr],
      [4, 'rlp: no host has the id "bbbb": rlp host ls lists them\n'],
    );
    assert.equal((await host(folder, ['drain', 'aaaa'])).code, 2);
    assert.equal((await host(folder, ['undrain', ''])).code, 2);
    assert.deepEqual(service.bodies, []);
  });
});

describe('rlp host evict', () => {
  test('one sandbox, by name or id, wherever it is', async () => {
    await using service = await startService();
    await using folder = await home(service);
    addHost(service);
    const { id } = addHost(service, { sandboxes: { running: 2 } });
    const spot = service.add('cheap', { runner_id: id, spot: true });
    service.add('dear', { runner_id: id });
    for (const vm of ['cheap', spot.id])
      assert.deepEqual(await host(folder, ['evict', vm]), { code: 0, stdout: `${spot.id}\n`, stderr: '' });
    const refused = await host(folder, ['evict', 'dear']);
    assert.deepEqual([refused.code, refused.stderr], [1, 'rlp: the sandbox is not a spot sandbox\n']);
    assert.equal((await host(folder, ['evict', 'nobody'])).code, 4);
    const gone = service.add('gone');
    assert.deepEqual(await host(folder, ['evict', gone.id]), {
      code: 4,
      stdout: '',
      stderr: `rlp: no host holds a sandbox ${gone.id}\n`,
    });
  });

  test('--all: every spot sandbox; what stays is told, and the exit code is 1', async () => {
    await using service = await startService();
    await using folder = await home(service);
    const [one, two] = [addHost(service), addHost(service)];
    const a = service.add('a', { runner_id: one.id, spot: true });
    const b = service.add('b', { runner_id: two.id, spot: true, persistent: true });
    assert.deepEqual(await host(folder, ['evict', '--all']), {
      code: 0,
      stdout: `${a.id}\n${b.id}\n`,
      stderr: '',
    });
    assert.equal((await host(folder, ['evict', '--all', '--host', two.id])).stdout, `${b.id}\n`);
    b.status = 'booting';
    const outcome = await host(folder, ['evict', '--all']);
    assert.deepEqual(outcome, {
      code: 1,
      stdout: `${a.id}\n`,
      stderr: `rlp: sandbox ${b.id} stays: it is booting\n`,
    });
  });

  test('neither a sandbox nor --all, or both, is wrong usage', async () => {
    await using service = await startService();
    await using folder = await home(service);
    for (const args of [[], ['web', '--all'], ['web', '--host', 'x']])
      assert.equal((await host(folder, ['evict', ...args])).code, 2);
    assert.deepEqual(service.calls, []);
  });
});

describe('rlp host forget', () => {
  test('a lost host, once told --yes; by its whole id again, it finishes what was interrupted', async () => {
    await using service = await startService();
    await using folder = await home(service);
    const { id } = addHost(service, { status: 'lost', sandboxes: { lost: 2, stopped: 1 }, snapshots: 4 });
    for (const text of [id, id.slice(0, 8)]) {
      const asked = await host(folder, ['forget', text]);
      assert.deepEqual([asked.code, asked.stdout], [2, '']);
      assert.match(asked.stderr, /\(sandboxes: 2 lost, 1 stopped; snapshots: 4\): say --yes/);
    }
    assert.equal(service.hosts.length, 1);
    const forgotten = await host(folder, ['forget', id.slice(0, 8), '--yes']);
    assert.deepEqual([forgotten.code, forgotten.stdout], [0, `${id}\n`], forgotten.stderr);
    assert.deepEqual(service.hosts, []);
    const again = await host(folder, ['forget', id, '--yes', '--json']);
    assert.deepEqual([again.code, json(again)['sandboxes']], [0, 0]);
    assert.equal((await host(folder, ['forget', id.slice(0, 8), '--yes'])).code, 4);
  });

  test('one that is not lost is refused, and one that was never seen is not found', async () => {
    await using service = await startService();
    await using folder = await home(service);
    const { id } = addHost(service);
    const refused = await host(folder, ['forget', id, '--yes']);
    assert.equal(refused.code, 1);
    assert.match(refused.stderr, /is online: only a lost one can be forgotten/);
    assert.equal((await host(folder, ['forget', '11111111-1111-4111-8111-111111111111', '--yes'])).code, 4);
    assert.equal(service.hosts.length, 1);
  });
});

describe("the operator's token", () => {
  test('is not there, cannot be read, is no token: each is said, and never what is in the file', async () => {
    await using service = await startService();
    await using none = await home(service, { 'operator.token': undefined });
    const absent = await host(none, ['ls']);
    assert.equal(absent.code, 3);
    assert.match(absent.stderr, /^rlp: There is no \S+operator\.token\. This is for the service's operator/);
    await using odd = await home(service, { 'operator.token': 'two words of a secret' });
    const broken = await host(odd, ['ls']);
    assert.equal(broken.code, 3);
    assert.match(broken.stderr, /does not hold the token of a service/);
    assert.doesNotMatch(broken.stderr, /secret/);
    await using folder = await home(service, { 'operator.token': undefined });
    await mkdir(join(folder.path, 'operator.token'));
    const unreadable = await host(folder, ['ls']);
    assert.match(unreadable.stderr, /cannot be read \(EISDIR\)/);
    assert.deepEqual(service.calls, []);
  });

  test('of another user: says as whom to call it', async (t) => {
    await using service = await startService();
    await using folder = await home(service);
    await chmod(folder.path, 0o755);
    // Root reads everything, so the question is asked as nobody, who must be able to read the program.
    const nobody = { uid: 65_534, gid: 65_534, cwd: '/', env: { RELEAP_HOME: folder.path } };
    const main = join(import.meta.dirname, '../src/main.ts');
    const version = process.getuid?.() === 0 && spawnSync(process.execPath, [main, '--version'], nobody);
    if (!version || version.status !== 0) return t.skip('needs root, and a checkout that others can read');
    const { stderr, status } = spawnSync(process.execPath, [main, 'host', 'ls'], nobody);
    assert.equal(status, 3);
    assert.match(String(stderr), /operator\.token may not be read by this user\. .* as the user it runs as/);
  });

  test('is told to the service of its machine, and to no other', async () => {
    await using service = await startService();
    await using other = await startService();
    await using folder = await home(service);
    for (const outcome of [
      await host(folder, ['ls', '--url', other.url]),
      await host(folder, ['ls'], { RELEAP_URL: other.url }),
    ]) {
      assert.equal(outcome.code, 2);
      assert.match(outcome.stderr, /go to the service of this machine/);
      assert.doesNotMatch(outcome.stderr, new RegExp(OPERATOR_TOKEN));
    }
    await using bare = await home(service, { 'bootstrap.json': undefined });
    assert.equal((await host(bare, ['ls', '--url', 'http://example.com'])).code, 3);
    assert.equal((await host(bare, ['ls', '--url', service.url])).code, 0);
    assert.deepEqual(other.calls, []);
  });

  test('that the service does not take, and a service that is down', async () => {
    await using service = await startService();
    await using old = await home(service, { 'operator.token': 'the-token-of-yesterday' });
    const refused = await host(old, ['ls']);
    assert.deepEqual(refused, { code: 3, stdout: '', stderr: 'rlp: missing or invalid operator token\n' });
    await using down = await home(service, {
      'bootstrap.json': JSON.stringify({
        base_url: 'http://127.0.0.1:2',
        internal_url: 'http://127.0.0.1:2',
        api_key: 'k',
      }),
    });
    assert.match((await host(down, ['ls'])).stderr, /cannot reach .*nothing listens there/);
    service.special.set('GET /operator/hosts', (_request, response) => sendForeign(response, 200, {}));
    await using folder = await home(service);
    assert.match((await host(folder, ['ls'])).stderr, /is it a Releap service/);
  });
});
