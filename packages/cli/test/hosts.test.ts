import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { chmod, mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { parseJoinToken } from '@releap/contract/join-token';
import { joinAs, OPERATOR_TOKEN } from '@releap/testing/credentials';
import { keyPath, testKeys } from '@releap/testing/keys';
import { startWorld, until, hosts, type ScriptedRunner, type World } from '@releap/testing/world';
import { home, type Home } from './home.ts';
import { sendJson, startRelay } from './relay.ts';
import { json, type Outcome, rlpHere } from './rlp.ts';
import { but, newProject, type Project, Scripts } from './world.ts';

function host(folder: Home, args: string[], env: Record<string, string> = {}): Promise<Outcome> {
  return rlpHere(null, ['host', ...args], { env: { RELEAP_HOME: folder.path, ...env } });
}

/** A service of this machine, as its operator sees it. Hosts are listed for all, so each test has one of its own. */
interface Operated extends AsyncDisposable {
  world: World;
  project: Project;
  scripts: Scripts;
  folder: Home;
  runner(options?: { id?: string; facts?: { name: string } }): Promise<ScriptedRunner>;
  hosts(): Promise<{ id: string; status: string; draining: boolean }[]>;
}

async function operated(options: Parameters<typeof startWorld>[0] = {}): Promise<Operated> {
  const world = await startWorld(options);
  const project = await newProject(world);
  const folder = await home({ url: world.url, internalUrl: world.internalUrl, key: project.key });
  const scripts = new Scripts();
  return {
    world,
    project,
    scripts,
    folder,
    runner: (own) => world.runner({ script: scripts.script, ...own }),
    hosts: () => hosts(world),
    [Symbol.asyncDispose]: async () => {
      await folder[Symbol.asyncDispose]();
      await world[Symbol.asyncDispose]();
    },
  };
}

/** For tests in which a host is lost: it has been silent for so long. */
const SHORT_PATIENCE = { limits: { runnerLostAfterMs: 4_000 } };

async function lose(it: Operated, runner: ScriptedRunner): Promise<void> {
  runner.drop();
  await until(async () => (await it.hosts()).some(({ id, status }) => id === runner.id && status === 'lost'));
}

describe('rlp host ls', () => {
  test('lists hosts with what they hold', async () => {
    await using it = await operated(SHORT_PATIENCE);
    const one = await it.runner({ facts: { name: 'rack-1' } });
    for (const name of ['a', 'b', 'c']) await it.project.create(name);
    await it.project.create('kept', { persistent: true });
    for (const name of ['first', 'second'])
      assert.equal((await it.project.rlp(['snapshot', 'create', 'a', name])).code, 0);
    assert.equal((await it.project.rlp(['pause', 'kept'])).code, 0);
    const two = await it.runner();
    assert.equal((await host(it.folder, ['drain', two.id])).code, 0);
    await lose(it, two);
    const three = await it.runner();
    three.heartbeat(false);
    await until(async () => (await host(it.folder, ['ls'])).stdout.includes('not ready'));
    const { code, stdout } = await host(it.folder, ['ls']);
    assert.equal(code, 0);
    const [head, ...rows] = stdout
      .trim()
      .split('\n')
      .map((line) => line.split(/\s{2,}/));
    assert.deepEqual(head, [
      'ID',
      'NAME',
      'REGION',
      'STATUS',
      'SEEN',
      'CPU',
      'MEM',
      'DISK',
      'SANDBOXES',
      'SNAPSHOTS',
      'CLASSES',
    ]);
    const row = (id: string): string[] => rows.find((cells) => cells[0] === id) ?? [];
    assert.deepEqual(
      [row(one.id)[1], row(one.id)[3], row(one.id)[8], row(one.id)[9]],
      ['rack-1', 'online', '1 paused, 3 running', '2'],
    );
    assert.equal(row(two.id)[3], 'lost, drained');
    assert.match(row(two.id)[4] ?? '', /^\d+ s$/);
    assert.equal(row(three.id)[3], 'not ready');
    assert.equal((JSON.parse((await host(it.folder, ['--json'])).stdout) as unknown[]).length, 3);
  });

  test('a time that cannot be read, of a service of another version, is not shown', async () => {
    await using it = await operated();
    await it.runner();
    const hosts = await it.hosts();
    await using relay = await startRelay();
    relay.answers.set('GET /operator/hosts', (_request, response) =>
      sendJson(response, 200, { hosts: hosts.map((one) => ({ ...one, last_seen_at: 'never' })) }),
    );
    await using folder = await home({ url: it.world.url, internalUrl: relay.url, key: it.project.key });
    const { stdout } = await host(folder, ['ls']);
    assert.match(stdout, /\n\S+ +- +here +online +- +/);
  });
});

describe('rlp host drain', () => {
  test('prints the outcome for each sandbox', async () => {
    await using it = await operated();
    const { id } = await it.runner();
    const kept = await it.project.create('kept', { persistent: true });
    const other = await it.project.create('other');
    const { code, stdout } = await host(it.folder, ['drain', id.slice(0, 8)]);
    assert.equal(code, 0);
    assert.match(stdout, new RegExp(`${kept.id} +pausing\\n${other.id} +stays running, not persistent\\n`));
    assert.equal(await it.project.status(other.id), 'running');
  });

  test('--force deletes what is not persistent, --wait returns when nothing runs there', async () => {
    await using it = await operated();
    const { id } = await it.runner();
    await it.project.create('kept', { persistent: true });
    const other = await it.project.create('other');
    const outcome = await host(it.folder, ['drain', id, '--force', '--wait', '--json']);
    assert.equal(outcome.code, 0, outcome.stderr);
    const drained = json(outcome)['host'] as { sandboxes: unknown; draining: boolean };
    assert.deepEqual([drained.sandboxes, drained.draining], [{ paused: 1 }, true]);
    assert.equal(await it.project.status(other.id), 'deleted');
  });

  test('--move moves what is persistent, and show says what a move waits for', async () => {
    await using it = await operated();
    const { id } = await it.runner();
    const kept = await it.project.create('kept', { persistent: true });
    const outcome = await host(it.folder, ['drain', id, '--move']);
    assert.equal(outcome.code, 0, outcome.stderr);
    await until(async () => /no other host/.test((await host(it.folder, ['show', id])).stdout));
    assert.match(
      (await host(it.folder, ['show', id])).stdout,
      new RegExp(
        `SANDBOX +MOVE +TO +PAUSE +REASON\\n${kept.id} +waiting +- +- +no other host of region "here"`,
      ),
    );
    const late = await host(it.folder, ['drain', id, '--move', '--wait', '--wait-timeout', '1s']);
    assert.match(
      late.stderr,
      /is still in use \(1 paused; rlp host show says what moves wait for\) after 1 s/,
    );
  });

  test('gives up waiting when its time is over, and when the operator ends the drain', async () => {
    await using it = await operated();
    const { id } = await it.runner();
    await it.project.create('other');
    const late = await host(it.folder, ['drain', id, '--wait', '--wait-timeout', '1s']);
    assert.equal(late.code, 1);
    assert.match(
      late.stderr,
      /is still in use \(1 running\) after 1 s; the drain continues in the background/,
    );
    await using relay = await startRelay({ url: it.world.internalUrl });
    await using folder = await home({ url: it.world.url, internalUrl: relay.url, key: it.project.key });
    const back = host(folder, ['drain', id, '--wait']);
    // Once it has been asked for again, and looked for afterwards.
    await until(() => {
      const asked = relay.calls.findLastIndex((call) => call.endsWith('/drain'));
      return asked !== -1 && relay.calls.slice(asked).includes('GET /operator/hosts');
    });
    assert.equal((await host(it.folder, ['undrain', id])).code, 0);
    assert.match((await back).stderr, /is not draining any more/);
  });

  test('undrain ends it', async () => {
    await using it = await operated();
    const { id } = await it.runner();
    assert.equal((await host(it.folder, ['drain', id])).code, 0);
    assert.equal((await it.hosts())[0]?.draining, true);
    assert.deepEqual(await host(it.folder, ['undrain', id]), { code: 0, stdout: `${id}\n`, stderr: '' });
    assert.equal((await it.hosts())[0]?.draining, false);
  });

  test('a host that is unknown or ambiguous', async () => {
    await using it = await operated();
    await it.runner({ id: 'aaaa0000-0000-4000-8000-000000000001', facts: { name: 'first' } });
    await it.runner({ id: 'aaaa0000-0000-4000-8000-000000000002' });
    const unknown = await host(it.folder, ['drain', 'bbbb']);
    assert.deepEqual(
      [unknown.code, unknown.stderr],
      [4, 'rlp: no host has the name or id "bbbb": rlp host ls lists them\n'],
    );
    assert.equal((await host(it.folder, ['drain', 'aaaa'])).code, 2);
    const named = await host(it.folder, ['undrain', 'first']);
    assert.equal(named.stdout, 'aaaa0000-0000-4000-8000-000000000001\n');
    assert.equal((await host(it.folder, ['undrain', ''])).code, 2);
    assert.ok((await it.hosts()).every(({ draining }) => !draining));
  });
});

describe('rlp host rename', () => {
  test('gives a host a name that wins over the declared one, and takes it back', async () => {
    await using it = await operated();
    const { id } = await it.runner({ facts: { name: 'declared' } });
    const renamed = await host(it.folder, ['rename', 'declared', 'rack 4']);
    assert.equal(renamed.code, 0, renamed.stderr);
    assert.match(renamed.stdout, /^name +rack 4, set by the operator; the host declares declared$/m);
    assert.match((await host(it.folder, ['ls'])).stdout, new RegExp(`^${id}  rack 4  `, 'm'));
    assert.match((await host(it.folder, ['show', 'rack 4'])).stdout, new RegExp(`^id +${id}$`, 'm'));
    assert.equal((await host(it.folder, ['show', 'declared'])).code, 4);
    for (const args of [[], ['again', '--clear'], [' ']])
      assert.notEqual((await host(it.folder, ['rename', 'rack 4', ...args])).code, 0);
    const cleared = await host(it.folder, ['rename', 'rack 4', '--clear']);
    assert.match(cleared.stdout, /^name +declared$/m);
    assert.match((await host(it.folder, ['ls'])).stdout, new RegExp(`^${id}  declared  `, 'm'));
  });

  test('a name of several hosts, or with which the id of another begins, is refused with their ids', async () => {
    await using it = await operated();
    const [one, two] = ['aaaa0000-0000-4000-8000-000000000001', 'bbbb0000-0000-4000-8000-000000000002'];
    await it.runner({ id: one });
    await it.runner({ id: two });
    for (const name of ['twin', 'aaaa']) {
      assert.equal((await host(it.folder, ['rename', two, name])).code, 0);
      if (name === 'twin') assert.equal((await host(it.folder, ['rename', one, name])).code, 0);
      const refused = await host(it.folder, ['drain', name]);
      assert.equal(refused.code, 2);
      assert.match(
        refused.stderr,
        new RegExp(`"${name}" means 2 hosts, use more of an id: ${one}.*, ${two}`),
      );
    }
    // An id wins over names.
    assert.equal((await host(it.folder, ['rename', two, one])).code, 0);
    assert.equal((await host(it.folder, ['undrain', one])).stdout, `${one}\n`);
    assert.ok((await it.hosts()).every(({ draining }) => !draining));
  });
});

describe('rlp host evict', () => {
  test('one sandbox, by name or id, wherever it is', async () => {
    await using it = await operated();
    await it.runner();
    const spot = await it.project.create('cheap', { spot: true, persistent: true });
    await it.project.create('dear');
    const printed = { code: 0, stdout: `${spot.id}\n`, stderr: '' };
    assert.deepEqual(await host(it.folder, ['evict', 'cheap']), printed);
    assert.equal((await it.project.rlp(['pause', 'cheap'])).code, 0, 'it is paused');
    assert.equal((await it.project.rlp(['resume', 'cheap'])).code, 0);
    assert.deepEqual(await host(it.folder, ['evict', spot.id]), printed);
    const refused = await host(it.folder, ['evict', 'dear']);
    assert.deepEqual([refused.code, refused.stdout], [1, '']);
    assert.match(refused.stderr, /^rlp: .* it is not in the spot tier\n$/);
    assert.equal((await host(it.folder, ['evict', 'nobody'])).code, 4);
    const gone = await it.project.create('gone');
    assert.equal((await it.project.rlp(['rm', '--wait', 'gone'])).code, 0);
    assert.deepEqual(await host(it.folder, ['evict', gone.id]), {
      code: 4,
      stdout: '',
      stderr: `rlp: no host holds a sandbox ${gone.id}\n`,
    });
  });

  test('--all: every spot sandbox; remaining ones are printed, and the exit code is 1', async () => {
    await using it = await operated();
    const one = await it.runner();
    const a = await it.project.create('a', { spot: true });
    one.heartbeat(false);
    await until(async () => (await host(it.folder, ['ls'])).stdout.includes('not ready'));
    const two = await it.runner();
    const b = await it.project.create('b', { spot: true, persistent: true });
    // Hosts are listed by id, which is random.
    const all = await host(it.folder, ['evict', '--all']);
    assert.deepEqual([all.code, all.stderr], [0, '']);
    assert.deepEqual(all.stdout.trimEnd().split('\n').sort(), [a.id, b.id].sort());
    await until(async () => (await it.project.status(b.id)) === 'paused');
    assert.equal((await it.project.rlp(['resume', 'b'])).code, 0);
    assert.equal((await host(it.folder, ['evict', '--all', '--host', two.id])).stdout, `${b.id}\n`);
    await until(async () => (await it.project.status(b.id)) === 'paused');
    const c = await it.project.create('c', { spot: true });
    it.scripts.set(
      'b',
      but('running', () => undefined),
    );
    assert.equal((await it.project.rlp(['resume', '--no-wait', 'b'])).code, 0);
    const outcome = await host(it.folder, ['evict', '--all']);
    assert.deepEqual(outcome, {
      code: 1,
      stdout: `${c.id}\n`,
      stderr: `rlp: sandbox ${b.id} stays: it is booting, and must be running\n`,
    });
  });

  test('neither a sandbox nor --all, or both, is wrong usage', async () => {
    await using relay = await startRelay();
    await using folder = await home({ url: relay.url, internalUrl: relay.url, key: 'rlp_any' });
    for (const args of [[], ['web', '--all'], ['web', '--host', 'x']])
      assert.equal((await host(folder, ['evict', ...args])).code, 2);
    assert.deepEqual(relay.calls, []);
  });
});

describe('rlp host forget', () => {
  test('a lost host, with --yes; a repeated call with its whole id finishes an interrupted one', async () => {
    await using it = await operated(SHORT_PATIENCE);
    const runner = await it.runner();
    const { id } = runner;
    await it.project.create('one', { persistent: true });
    const running: string[] = [];
    for (const name of ['two', 'three'])
      running.push((await it.project.create(name, { persistent: true })).id);
    assert.equal((await it.project.rlp(['stop', 'one'])).code, 0);
    assert.equal((await it.project.rlp(['snapshot', 'create', 'two', 'warm'])).code, 0);
    await lose(it, runner);
    // They follow their host.
    for (const lost of running) await until(async () => (await it.project.status(lost)) === 'lost');
    for (const text of [id, id.slice(0, 8)]) {
      const asked = await host(it.folder, ['forget', text]);
      assert.deepEqual([asked.code, asked.stdout], [2, '']);
      assert.match(
        asked.stderr,
        /\(sandboxes: (2 lost, 1 stopped|1 stopped, 2 lost); snapshots: 1\): say --yes/,
      );
    }
    assert.equal((await it.hosts()).length, 1);
    const forgotten = await host(it.folder, ['forget', id.slice(0, 8), '--yes']);
    assert.deepEqual([forgotten.code, forgotten.stdout], [0, `${id}\n`], forgotten.stderr);
    assert.deepEqual(await it.hosts(), []);
    const again = await host(it.folder, ['forget', id, '--yes', '--json']);
    assert.deepEqual([again.code, json(again)['sandboxes']], [0, 0]);
    assert.equal((await host(it.folder, ['forget', id.slice(0, 8), '--yes'])).code, 4);
  });

  test('one that is not lost is refused, and one that was never seen is not found', async () => {
    await using it = await operated();
    const { id } = await it.runner();
    const refused = await host(it.folder, ['forget', id, '--yes']);
    assert.equal(refused.code, 1);
    assert.match(refused.stderr, /is online.*: only a lost one.*can be forgotten/);
    assert.equal(
      (await host(it.folder, ['forget', '11111111-1111-4111-8111-111111111111', '--yes'])).code,
      4,
    );
    assert.equal((await it.hosts()).length, 1);
  });
});

describe("the operator's token", () => {
  test('missing, unreadable or invalid: each is reported, without the content of the file', async () => {
    await using relay = await startRelay();
    const server = { url: relay.url, internalUrl: relay.url, key: 'rlp_any' };
    await using none = await home(server, { 'operator.token': undefined });
    const absent = await host(none, ['ls']);
    assert.equal(absent.code, 3);
    assert.match(absent.stderr, /^rlp: There is no \S+operator\.token\. This is for the service's operator/);
    await using odd = await home(server, { 'operator.token': 'two words of a secret' });
    const broken = await host(odd, ['ls']);
    assert.equal(broken.code, 3);
    assert.match(broken.stderr, /does not hold the token of a service/);
    assert.doesNotMatch(broken.stderr, /secret/);
    await using folder = await home(server, { 'operator.token': undefined });
    await mkdir(join(folder.path, 'operator.token'));
    const unreadable = await host(folder, ['ls']);
    assert.match(unreadable.stderr, /cannot be read \(EISDIR\)/);
    assert.deepEqual(relay.calls, []);
  });

  test('of another user: names the user to run as', async (t) => {
    await using relay = await startRelay();
    await using folder = await home({ url: relay.url, internalUrl: relay.url, key: 'rlp_any' });
    await chmod(folder.path, 0o755);
    // Root reads everything, so the command runs as the user `nobody`, who must be able to read the program.
    const nobody = { uid: 65_534, gid: 65_534, cwd: '/', env: { RELEAP_HOME: folder.path } };
    const main = join(import.meta.dirname, '../src/main.ts');
    const version = process.getuid?.() === 0 && spawnSync(process.execPath, [main, '--version'], nobody);
    if (!version || version.status !== 0) return t.skip('needs root, and a checkout that others can read');
    const { stderr, status } = spawnSync(process.execPath, [main, 'host', 'ls'], nobody);
    assert.equal(status, 3);
    assert.match(String(stderr), /operator\.token may not be read by this user\. .* as the user it runs as/);
  });

  test('is sent to the service of its machine, and to no other', async () => {
    await using it = await operated();
    await using other = await startRelay({ url: it.world.internalUrl });
    const { folder } = it;
    for (const outcome of [
      await host(folder, ['ls', '--url', other.url]),
      await host(folder, ['ls'], { RELEAP_URL: other.url }),
    ]) {
      assert.equal(outcome.code, 2);
      assert.match(outcome.stderr, /only use the service of this machine/);
      assert.doesNotMatch(outcome.stderr, new RegExp(OPERATOR_TOKEN));
    }
    await using bare = await home(
      { url: it.world.url, internalUrl: it.world.internalUrl, key: it.project.key },
      { 'bootstrap.json': undefined },
    );
    assert.equal((await host(bare, ['ls', '--url', 'http://example.com'])).code, 3);
    assert.equal((await host(bare, ['ls', '--url', it.world.internalUrl])).code, 0);
    assert.deepEqual(other.calls, []);
  });

  test('refused by the service, and a service that is down', async () => {
    await using it = await operated();
    const server = { url: it.world.url, internalUrl: it.world.internalUrl, key: it.project.key };
    await using old = await home(server, { 'operator.token': 'the-token-of-yesterday' });
    const refused = await host(old, ['ls']);
    assert.deepEqual(refused, { code: 3, stdout: '', stderr: 'rlp: missing or invalid operator token\n' });
    await using down = await home(server, {
      'bootstrap.json': JSON.stringify({
        base_url: 'http://127.0.0.1:2',
        internal_url: 'http://127.0.0.1:2',
        api_key: 'k',
      }),
    });
    assert.match((await host(down, ['ls'])).stderr, /cannot reach .*nothing listens there/);
    await using relay = await startRelay();
    relay.answers.set('GET /operator/hosts', (_request, response) => sendJson(response, 200, {}));
    await using folder = await home({ ...server, internalUrl: relay.url });
    assert.match((await host(folder, ['ls'])).stderr, /is it a Releap service/);
  });
});

describe('rlp host join-settings', () => {
  test('prints what another machine joins with', async () => {
    await using it = await operated({ keys: testKeys(keyPath()) });
    await writeFile(join(it.folder.path, 'join.token'), `${'j'.repeat(43)}\n`);
    const url = 'https://10.0.0.1:7072';
    const printed = async (...args: string[]): Promise<string> => {
      const settings = await host(it.folder, ['join-settings', '--control-url', url, ...args]);
      assert.equal(settings.code, 0, settings.stderr);
      const lines = new RegExp(
        `^RELEAP_CONTROL_URL=${url}\nRELEAP_CONTROL_FINGERPRINT=[0-9a-f]{64}\nRELEAP_JOIN_TOKEN=(.+)\n$`,
      ).exec(settings.stdout);
      return lines?.[1] ?? assert.fail(settings.stdout);
    };
    assert.equal(await printed('--shared'), 'j'.repeat(43));
    const token = await printed();
    assert.equal((await joinAs(it.world.internalUrl, randomUUID(), { token })).status, 200);
    assert.equal((await joinAs(it.world.internalUrl, randomUUID(), { token })).status, 401);
    const loopback = await host(it.folder, ['join-settings']);
    assert.deepEqual([loopback.code, loopback.stdout], [3, '']);
    assert.match(loopback.stderr, /RELEAP_INTERNAL_HOST/);
    assert.equal((await host(it.folder, ['join-settings', '--control-url', 'http://10.0.0.1:7072'])).code, 2);
    await rm(join(it.folder.path, 'join.token'));
    const shared = await host(it.folder, ['join-settings', '--shared', '--control-url', url]);
    assert.match(shared.stderr, /no join token/);
  });
});

describe('rlp host join-token', () => {
  test('creates one, which is listed without its secret, and revoked', async () => {
    await using it = await operated({ keys: testKeys(keyPath()) });
    const loopback = await host(it.folder, ['join-token']);
    assert.deepEqual([loopback.code, loopback.stdout], [3, '']);
    assert.match(loopback.stderr, /RELEAP_INTERNAL_HOST/);
    const controlUrl = 'https://10.0.0.1:7072';
    const made = await host(it.folder, [
      'join-token',
      '--control-url',
      controlUrl,
      '--expires',
      '2h',
      '--uses',
      '2',
      '--name',
      'two more',
    ]);
    assert.equal(made.code, 0, made.stderr);
    const joinToken = parseJoinToken(made.stdout.trim());
    assert.equal(joinToken.controlUrl, controlUrl);
    const { secret: token } = joinToken;
    const joined = randomUUID();
    assert.equal((await joinAs(it.world.internalUrl, joined, { token })).status, 200);
    const list = (await host(it.folder, ['join-tokens'])).stdout;
    assert.match(list, new RegExp(`two more +valid +1 of 2 .*  ${joined.slice(0, 8)}$`, 'm'));
    assert.ok(!list.includes(token));
    const listed = await host(it.folder, ['join-tokens', '--json']);
    const [one] = JSON.parse(listed.stdout) as { id: string; created_at: string; expires_at: string }[];
    assert.ok(one !== undefined);
    assert.equal(Date.parse(one.expires_at) - Date.parse(one.created_at), 7_200_000);
    await it.runner({ id: joined, facts: { name: 'rack-1' } });
    assert.match((await host(it.folder, ['join-tokens'])).stdout, /  rack-1$/m);
    assert.ok(
      (await host(it.folder, ['show', 'rack-1'])).stdout.includes(
        `join token           ${one.id} (two more)\n`,
      ),
    );
    const revoked = await host(it.folder, ['join-token-revoke', one.id]);
    assert.deepEqual([revoked.code, revoked.stdout], [0, `${one.id}\n`]);
    assert.equal((await joinAs(it.world.internalUrl, randomUUID(), { token })).status, 401);
    assert.match((await host(it.folder, ['join-tokens'])).stdout, /two more +revoked/);
    assert.equal((await host(it.folder, ['join-token-revoke', 'nothing'])).code, 4);
    assert.equal((await host(it.folder, ['join-token', '--control-url', controlUrl, '--uses', '0'])).code, 2);
  });
});
