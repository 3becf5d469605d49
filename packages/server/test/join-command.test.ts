/** `releap join`: a machine becomes a host with one token, or is told why not, and then nothing of it stays. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { promisify } from 'node:util';
import type { HostAuthorityRecord, JoinTokenCreated, JoinTokenRecord } from '@releap/contract';
import { formatJoinToken } from '@releap/contract/join-token';
import { dataKeyOf, joinAs } from '@releap/testing/credentials';
import { keyPath, testKeys } from '@releap/testing/keys';
import { freePort } from '@releap/testing/ports';
import { programOf } from '@releap/testing/program';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { startWorld, type World } from '@releap/testing/world';
import { joinCommand } from '../src/join/join-command.ts';
import { runnerCommand } from '../src/paths.ts';
import { withSettings } from '../src/config/settings-file.ts';

const MAIN = programOf(path.join(import.meta.dirname, '../src/main.ts'));

const keys = testKeys(keyPath());
let world: World;
let folder: string;
let place: { controlUrl: string; fingerprint: string };
before(async () => {
  world = await startWorld({ keys, internalTls: true });
  folder = await temporaryFolder('releap-join-');
  const { fingerprint } = (await world.operator('GET', '/operator/host-authority'))
    .body as HostAuthorityRecord;
  place = { controlUrl: world.internalUrl.replace('http:', 'https:'), fingerprint };
});
after(async () => {
  await world[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

const newHome = (): string => path.join(folder, randomUUID());

async function newSecret(body: object = {}): Promise<JoinTokenCreated> {
  return (await world.operator('POST', '/operator/join-tokens', body)).body as JoinTokenCreated;
}
const newToken = async (): Promise<string> =>
  formatJoinToken({ ...place, secret: (await newSecret()).token });

interface Outcome {
  code: number;
  stdout: string;
  stderr: string;
}

/** As the command does it, in this process. */
async function join(home: string, args: string[], env: Record<string, string> = {}): Promise<Outcome> {
  let stdout = '';
  const print = (text: string): void => void (stdout += text);
  return await joinCommand(args, { RELEAP_HOME: home, ...env }, print).then(
    (code) => ({ code, stdout, stderr: '' }),
    (error: Error) => ({ code: 1, stdout, stderr: error.message }),
  );
}

async function spawned(home: string, args: string[], env: Record<string, string> = {}): Promise<Outcome> {
  return await promisify(execFile)(process.execPath, [MAIN, 'join', ...args], {
    env: { ...process.env, RELEAP_HOME: home, ...env },
  }).then(
    (done) => ({ code: 0, ...done }),
    (error: Outcome) => error,
  );
}

/** It is refused with a line that matches, and leaves nothing. */
async function refused(token: string, expected: RegExp, args: string[] = [], run = join): Promise<void> {
  const home = newHome();
  const { code, stdout, stderr } = await run(home, [token, ...args]);
  assert.notEqual(code, 0);
  assert.equal(stdout, '');
  assert.match(stderr, expected);
  assert.equal(existsSync(home), false, 'something was written');
}

async function filesOf(home: string): Promise<Map<string, string>> {
  const names = await readdir(home, { recursive: true });
  const files = new Map<string, string>();
  for (const name of names) {
    const file = path.join(home, name);
    if ((await stat(file)).isFile()) files.set(name, await readFile(file, 'utf8'));
  }
  return files;
}

const uses = async (id: string): Promise<number | undefined> => {
  const { body } = await world.operator('GET', '/operator/join-tokens');
  return (body.join_tokens as JoinTokenRecord[]).find((one) => one.id === id)?.uses_left;
};

describe('releap join', () => {
  it('joins, leaves settings for the runner without the secret, and again only changes the settings', async () => {
    const home = newHome();
    const created = await newSecret({ uses: 5 });
    const token = formatJoinToken({ ...place, secret: created.token });
    const joined = await spawned(home, [token, '--name', 'rack-4']);
    assert.equal(joined.code, 0, joined.stderr);
    const files = await filesOf(home);
    const id = files.get('runner/id')?.trim() ?? '';
    assert.match(joined.stdout, new RegExp(`^joined ${place.controlUrl} as host ${id}\n`));
    assert.match(joined.stdout, /npm start -- runner/);
    assert.deepEqual([...files.keys()].sort(), [
      'runner.env',
      'runner/control-ca.pem',
      'runner/credential',
      'runner/deployment',
      'runner/id',
    ]);
    for (const [name, text] of files) {
      assert.ok(!text.includes(created.token) && !text.includes(token), name);
      assert.equal((await stat(path.join(home, name))).mode & 0o777, 0o600, name);
    }
    await dataKeyOf(world.internalUrl, files.get('runner/credential')?.trim() ?? '');
    assert.deepEqual(withSettings({ RELEAP_HOME: home, RELEAP_HOST_NAME: 'other', RELEAP_DATA_HOST: '' }), {
      RELEAP_HOME: home,
      RELEAP_CONTROL_URL: place.controlUrl,
      RELEAP_CONTROL_FINGERPRINT: place.fingerprint,
      RELEAP_HOST_NAME: 'other',
    });
    assert.equal(await uses(created.id), 4);

    const port = await freePort();
    const listens = { RELEAP_DATA_PORT: String(port) };
    const nowhere = await join(home, [token, '--data-url', `https://127.0.0.1:${await freePort()}`], listens);
    assert.equal(nowhere.code, 1);
    assert.match(
      nowhere.stderr,
      new RegExp(`already joined as host ${id}, but the control plane cannot connect to .*ECONNREFUSED`),
    );
    assert.equal((await filesOf(home)).get('runner.env'), files.get('runner.env'));
    const again = await join(home, [token, '--data-url', `https://127.0.0.1:${port}`], listens);
    assert.equal(again.code, 0, again.stderr);
    assert.match(again.stdout, new RegExp(`^already joined ${place.controlUrl} as host ${id}; .*not used\n`));
    assert.match(again.stdout, new RegExp(`connect to https://127.0.0.1:${port}`));
    assert.equal(await uses(created.id), 4);
    const settings = (await filesOf(home)).get('runner.env') ?? '';
    assert.match(settings, /RELEAP_HOST_NAME=rack-4\nRELEAP_DATA_HOST=0.0.0.0\nRELEAP_DATA_URL=https/);
    const none = await join(home, [token, '--data-host', 'none']);
    assert.equal(none.code, 0, none.stderr);
    assert.doesNotMatch((await filesOf(home)).get('runner.env') ?? '', /RELEAP_DATA/);
  });

  it('says how the runner is started where it was installed', () => {
    assert.equal(runnerCommand(), 'npm start -- runner');
    assert.equal(runnerCommand('/usr/lib/releap'), 'systemctl enable --now releap-runner');
    const archive = path.join(folder, 'releap-1.0.0-linux-amd64');
    assert.equal(runnerCommand(archive), `${archive}/bin/releap runner`);
  });

  it('finishes what a call has begun whose answer was lost', async () => {
    const home = newHome();
    const { token: secret } = await newSecret();
    const [id, credential] = [randomUUID(), `rlpr_${'c'.repeat(43)}`];
    await mkdir(path.join(home, 'runner'), { recursive: true });
    await writeFile(path.join(home, 'runner/id'), `${id}\n`);
    await writeFile(path.join(home, 'runner/credential.next'), `${credential}\n`);
    assert.equal((await joinAs(world.internalUrl, id, { token: secret, credential })).status, 200);
    const joined = await join(home, [formatJoinToken({ ...place, secret })]);
    assert.match(joined.stdout, new RegExp(`^joined .* as host ${id}\n`), joined.stderr);
    assert.equal((await filesOf(home)).get('runner/credential'), `${credential}\n`);
  });

  it('gives a known host another credential with the permission of the operator alone', async () => {
    const home = newHome();
    const { id } = await world.runner();
    await mkdir(path.join(home, 'runner'), { recursive: true });
    await writeFile(path.join(home, 'runner/id'), `${id}\n`);
    const before = await filesOf(home);
    const { code, stderr } = await join(home, [await newToken()]);
    assert.deepEqual([code, /already registered.*permit-join/.test(stderr)], [1, true], stderr);
    assert.deepEqual(await filesOf(home), before);
    const { body } = await world.operator('POST', `/operator/hosts/${id}/join-permission`, {});
    const permitted = await join(home, [formatJoinToken({ ...place, secret: String(body.token) })]);
    assert.match(permitted.stdout, new RegExp(`^joined .* as host ${id}\n`), permitted.stderr);
    await dataKeyOf(world.internalUrl, (await filesOf(home)).get('runner/credential')?.trim() ?? '');
  });

  it('tells a machine that the operator has forgotten it', async () => {
    const home = newHome();
    const { id } = await world.runner();
    await world.database.pool.query('update runners set forgotten_at = now() where id = $1', [id]);
    await mkdir(path.join(home, 'runner'), { recursive: true });
    await writeFile(path.join(home, 'runner/id'), `${id}\n`);
    const { code, stderr } = await join(home, [await newToken()]);
    assert.equal(code, 1);
    assert.match(stderr, new RegExp(`has forgotten runner "${id}".*another RELEAP_HOME`));
  });

  it('refuses a token that is damaged, used up, expired or revoked', async () => {
    const token = await newToken();
    await refused(token.slice(0, -5), /the join token is incomplete/);
    await refused('rlpj_secret', /a join token begins with rlpjoin_/);
    assert.equal((await join(newHome(), [token])).code, 0);
    await refused(token, /the control plane refuses this machine: this join token is used up/);
    const expired = await newSecret();
    await world.database.pool.query('update join_tokens set expires_at = now() where id = $1', [expired.id]);
    await refused(formatJoinToken({ ...place, secret: expired.token }), /this join token expired at/);
    const revoked = await newSecret();
    await world.operator('DELETE', `/operator/join-tokens/${revoked.id}`);
    await refused(formatJoinToken({ ...place, secret: revoked.token }), /this join token was revoked/);
    const unknown = { ...place, secret: `rlpj_${'u'.repeat(43)}` };
    await refused(formatJoinToken(unknown), /missing or invalid join token/);
  });

  it('refuses another deployment, on the way or in the home', async () => {
    const other = { ...place, fingerprint: createHash('sha256').update('other').digest('hex') };
    const { token: secret } = await newSecret();
    await refused(
      formatJoinToken({ ...other, secret }),
      /is not of the deployment that the join token is for/,
    );
    const home = newHome();
    const former = randomUUID();
    await mkdir(path.join(home, 'runner'), { recursive: true });
    await writeFile(path.join(home, 'runner/deployment'), `${former}\n`);
    const { code, stderr } = await join(home, [formatJoinToken({ ...place, secret })]);
    assert.equal(code, 1);
    assert.match(stderr, new RegExp(`belongs to deployment "?${former}"?, and this is another one`));
    assert.deepEqual([...(await filesOf(home)).keys()], ['runner/deployment']);
    await writeFile(path.join(home, 'bootstrap.json'), '{}');
    const whole = await join(home, [formatJoinToken({ ...place, secret })]);
    assert.match(whole.stderr, /is the home of a whole service/);
  });

  it('refuses a machine without a network to it, or with a wrong clock or address', async () => {
    const { token: secret } = await newSecret();
    const away = { ...place, controlUrl: `https://127.0.0.1:${await freePort()}` };
    await refused(
      formatJoinToken({ ...away, secret }),
      /cannot be reached from this machine: .*ECONNREFUSED/,
    );
    const token = formatJoinToken({ ...place, secret });
    const ahead = 'data:text/javascript,const%20now=Date.now;Date.now=()=>now()+3600000';
    await refused(token, /clock of this machine is 3[56]\d\d s ahead/, [], (home, args) =>
      spawned(home, args, { NODE_OPTIONS: `--import=${ahead}` }),
    );
    await refused(token, /RELEAP_DATA_HOST=198\.51\.100\.1: this machine has no such address/, [
      '--data-host',
      '198.51.100.1',
    ]);
    await refused(token, /RELEAP_DATA_URL=http:/, ['--data-url', 'http://10.0.0.2:7076']);
    await refused(token, /^$/, ['--force']);
  });

  it('is refused by a control plane that no longer speaks its protocol', async () => {
    const answer = await fetch(`${world.internalUrl}/internal/runners/join`, {
      method: 'POST',
      headers: { authorization: `Bearer ${(await newSecret()).token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ runner_id: randomUUID(), credential_sha256: 'a'.repeat(64), protocol: 0 }),
    });
    assert.equal(answer.status, 409);
    assert.match(await answer.text(), /version 0 of the runner protocol, and 1 is the oldest/);
  });
});
