import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { chooseTokens } from '../src/account/tokens.ts';
import { CLIENT, testUser } from './issuer.ts';
import { person, signedIn, signedInWorld, type World, world } from './person.ts';
import { json, type Outcome } from './rlp.ts';
import { send, sendForeign, startService } from './service.ts';

/** Signs in as with a browser: opens the address that is shown, and follows it back. */
async function browse(
  { ada, service }: World,
  visit = (address: string) => fetch(address),
): Promise<Outcome> {
  let told = '';
  return await ada.rlp(['login', '--url', service.url], {
    started: (child) =>
      child.stderr?.on('data', (chunk: Buffer) => {
        const before = told;
        told += chunk.toString('utf8');
        const address = /^ {2}(http\S+)\n/m;
        if (!address.test(before) && address.test(told))
          void visit(address.exec(told)?.[1] ?? '').catch(() => undefined);
      }),
  });
}

describe('rlp login', () => {
  test('in a browser: code with PKCE and a loopback address, and the tokens for this user alone', async () => {
    await using it = await world();
    const { code, stdout, stderr } = await browse(it);
    assert.equal(code, 0, stderr);
    assert.equal(stdout, `signed in to ${it.service.url} as ada@example.com\n`);
    const [query] = it.issuer.authorizations;
    assert.equal(query?.get('code_challenge_method'), 'S256');
    assert.equal(query?.get('audience'), 'releap');
    assert.match(String(query?.get('redirect_uri')), /^http:\/\/127\.0\.0\.1:\d+\/callback$/);
    const { current, services } = await it.ada.credentials();
    assert.equal(current, it.service.url);
    assert.equal(services[it.service.url]?.user.email, 'ada@example.com');
    assert.equal(await it.ada.fileMode(), 0o600);
    for (const token of [...it.issuer.tokens.keys(), ...it.issuer.refreshTokens.keys()])
      assert.ok(!stdout.includes(token) && !stderr.includes(token));
    assert.match(
      (await it.ada.rlp(['whoami'])).stdout,
      /^ada@example\.com \(ada\) at http:\S+\nno project in use\n$/,
    );
  });

  test('a browser that comes back with another state is sent away, and the right one is still taken', async () => {
    await using it = await world();
    const statuses: number[] = [];
    const outcome = await browse(it, async (address) => {
      const back = new URL(new URL(address).searchParams.get('redirect_uri') ?? '');
      for (const query of ['?code=stolen&state=guessed', '', '?error=access_denied'])
        statuses.push((await fetch(`${back.href}${query}`)).status);
      return await fetch(address);
    });
    assert.deepEqual([outcome.code, statuses], [0, [404, 404, 404]]);
  });

  test('what the issuer refuses is told, and nothing is kept', async () => {
    await using it = await world();
    it.issuer.refuse = 'access_denied';
    const { code, stdout, stderr } = await browse(it);
    assert.deepEqual([code, stdout], [3, '']);
    assert.match(stderr, /signing in at http:\S+ did not work: access_denied/);
    assert.ok(!existsSync(join(it.ada.config, 'releap/credentials.json')));
  });

  test('--device: shows a code, and waits as the issuer says', async () => {
    await using it = await world();
    it.issuer.polls = ['authorization_pending'];
    const { code, stdout, stderr } = await it.ada.rlp([
      'login',
      '--device',
      '--json',
      '--url',
      it.service.url,
    ]);
    assert.equal(code, 0, stderr);
    assert.deepEqual(JSON.parse(stdout), {
      url: it.service.url,
      user: { id: it.issuer.user.id, email: 'ada@example.com' },
    });
    assert.match(stderr, /open \S+\/activate in any browser and enter\n\n {2}WDJB-MJHT\n/);
    assert.equal(it.issuer.calls.length, 3);
  });

  test('--device: a code that is refused or has run out', async () => {
    await using it = await world();
    for (const reason of ['access_denied', 'expired_token']) {
      it.issuer.polls = [reason];
      const outcome = await it.ada.rlp(['login', '--device', '--url', it.service.url]);
      assert.equal(outcome.code, 3);
      assert.match(outcome.stderr, new RegExp(`did not work: ${reason}`));
    }
  });

  test('takes the ID token where access tokens cannot be read, as far as the service takes it', async () => {
    await using it = await world();
    it.issuer.opaque = true;
    const outcome = await it.ada.rlp(['login', '--device', '--url', it.service.url]);
    assert.deepEqual([outcome.code, outcome.stdout], [3, '']);
    assert.match(outcome.stderr, /rlp: the token is not good\n$/);
  });

  test('a service without an issuer, one that is none, one that is down', async () => {
    await using bare = await startService();
    await using ada = await person();
    const none = await ada.rlp(['login', '--url', bare.url]);
    assert.deepEqual([none.code, none.stderr], [1, 'rlp: this server has no issuer of tokens\n']);
    bare.special.set('GET /auth/config', (_request, response) =>
      send(response, 404, { error: 'no such path' }),
    );
    assert.match((await ada.rlp(['login', '--url', bare.url])).stderr, /is it a Releap service/);
    bare.special.set('GET /auth/config', (_request, response) => sendForeign(response, 200, {}));
    assert.match((await ada.rlp(['login', '--url', bare.url])).stderr, /is it a Releap service/);
    const down = await ada.rlp(['login', '--url', 'http://127.0.0.1:2']);
    assert.deepEqual([down.code, down.stdout], [3, '']);
    assert.match(down.stderr, /nothing listens there/);
  });

  test('an issuer that is down, that is another, or that could be listened to', async () => {
    await using it = await world();
    const config = { client_id: CLIENT, audience: 'releap', scopes: ['openid'] };
    const issuers = {
      'http://127.0.0.1:2': /did not work: .*/,
      'http://issuer.example.com': /must be https/,
      [`${it.service.url}/other`]: /did not work/,
    };
    for (const [issuer, said] of Object.entries(issuers)) {
      it.service.special.set('GET /auth/config', (_request, response) =>
        send(response, 200, { ...config, issuer }),
      );
      const outcome = await it.ada.rlp(['login', '--device', '--url', it.service.url]);
      assert.equal(outcome.code, 3);
      assert.match(outcome.stderr, said);
    }
  });

  test('interrupted while it waits for the browser', async () => {
    await using it = await world();
    const outcome = await it.ada.rlp(['login', '--url', it.service.url], {
      started: (child) => child.stderr?.on('data', () => child.kill('SIGINT')),
    });
    assert.equal(outcome.code, 130);
  });
});

describe('a sign-in', () => {
  const past = new Date(Date.now() - 1000).toISOString();

  test('is refreshed when it ends, once for all who ask at the same time', async () => {
    await using it = await world();
    const { issuer, ada, service } = it;
    issuer.refreshTokens.set('first', issuer.user);
    await ada.remember(signedIn(it, issuer.user, { expires_at: past, refresh_token: 'first' }));
    const outcomes = await Promise.all(
      [1, 2, 3].map(() => ada.rlp(['org', 'ls', '--json'], { started: () => undefined })),
    );
    for (const { code, stderr } of outcomes) assert.deepEqual([code, stderr], [0, '']);
    assert.deepEqual(issuer.calls, ['refresh_token']);
    const session = (await ada.credentials()).services[service.url];
    assert.ok(session?.refresh_token !== 'first' && Date.parse(session?.expires_at ?? '') > Date.now());
    assert.equal(await ada.fileMode(), 0o600);
    assert.ok(!existsSync(join(ada.config, 'releap/credentials.json.lock')));
  });

  test('that the issuer does not prolong, or cannot: exit code 3, and what to do', async () => {
    await using it = await world();
    const { issuer, ada } = it;
    await ada.remember(signedIn(it, issuer.user, { expires_at: past, refresh_token: 'used' }));
    const refused = await ada.rlp(['org', 'ls']);
    assert.deepEqual(refused, {
      code: 3,
      stdout: '',
      stderr: 'rlp: the sign-in has ended: rlp login signs in again\n',
    });
    await ada.remember(signedIn(it, issuer.user, { expires_at: past }));
    assert.match((await ada.rlp(['org', 'ls'])).stderr, /has ended: rlp login signs in again/);
    await ada.remember(
      signedIn(it, issuer.user, { expires_at: past, refresh_token: 'x', issuer: 'https://old' }),
    );
    assert.match((await ada.rlp(['org', 'ls'])).stderr, /has another issuer than when you signed in/);
    assert.deepEqual(issuer.calls, ['refresh_token'], 'a token is told to who gave it alone');
  });

  test('that the service does not take any more: says to sign in again', async () => {
    await using it = await signedInWorld();
    it.issuer.tokens.clear();
    const outcome = await it.ada.rlp(['project', 'ls']);
    assert.deepEqual(outcome, {
      code: 3,
      stdout: '',
      stderr: 'rlp: the token is not good: rlp login signs in again\n',
    });
  });

  test('is asked for where there is none, also for another service', async () => {
    await using it = await signedInWorld();
    await using other = await person();
    const nobody = await other.rlp(['org', 'ls', '--url', it.service.url]);
    assert.deepEqual(
      [nobody.code, nobody.stderr],
      [3, `rlp: nobody is signed in to ${it.service.url}: rlp login does it\n`],
    );
    assert.equal((await it.ada.rlp(['org', 'ls', '--url', 'http://127.0.0.1:2'])).code, 3);
    assert.match((await other.rlp(['org', 'ls'])).stderr, /no service is configured: name it with --url/);
  });

  test('in a file that others may read, or that is broken, is not used, and not shown', async () => {
    await using it = await signedInWorld();
    const { ada, issuer } = it;
    await ada.remember(signedIn(it, issuer.user), 0o644);
    const open = await ada.rlp(['org', 'ls']);
    assert.equal(open.code, 3);
    assert.match(open.stderr, /may be read by others: chmod 600/);
    for (const text of ['{"token": "secret-thing', '"secret-thing"', 'null']) {
      await ada.remember(text);
      const broken = await ada.rlp(['org', 'ls']);
      assert.equal(broken.code, 3);
      assert.match(broken.stderr, /is not what rlp login writes/);
      assert.doesNotMatch(broken.stderr, /secret-thing/);
    }
  });

  test('a lock that a killed process left behind does not stand in the way', async () => {
    await using it = await signedInWorld();
    const lock = join(it.ada.config, 'releap/credentials.json.lock');
    await writeFile(lock, '1\n');
    await utimes(lock, new Date(0), new Date(0));
    assert.equal((await it.ada.rlp(['project', 'use', '--none'])).code, 0);
    assert.ok(!existsSync(lock));
  });
});

describe('rlp logout', () => {
  test('forgets the tokens, and revokes them and the keys of this machine', async () => {
    await using it = await signedInWorld();
    const { ada, management, issuer, service } = it;
    issuer.refreshTokens.set('mine', issuer.user);
    await ada.remember(signedIn(it, issuer.user, { refresh_token: 'mine' }));
    const [own] = management.organizations;
    own?.projects.push({ id: '11111111-1111-4111-8111-111111111111', org_id: own.id, name: 'web' });
    assert.equal((await ada.rlp(['project', 'use', 'web'])).code, 0);
    const outcome = await ada.rlp(['logout']);
    assert.deepEqual(outcome, { code: 0, stdout: '', stderr: '' });
    assert.deepEqual(await ada.credentials(), { services: {} });
    assert.notEqual(management.keys[0]?.revoked_at, null);
    assert.ok(!issuer.refreshTokens.has('mine'));
    assert.deepEqual(json(await ada.rlp(['logout', '--json', '--url', service.url])), {
      url: service.url,
      signed_out: false,
    });
  });

  test('of a service that is away still forgets, and says what was not revoked', async () => {
    await using it = await world();
    const gone = signedIn(it, testUser('ada'), { refresh_token: 'mine' });
    const session = Object.values(gone.services)[0];
    await it.ada.remember({ current: 'http://127.0.0.1:2', services: { 'http://127.0.0.1:2': session } });
    const outcome = await it.ada.rlp(['logout']);
    assert.equal(outcome.code, 0);
    assert.match(outcome.stderr, /signed out here, but not all was revoked: cannot reach/);
    assert.deepEqual(await it.ada.credentials(), { services: {} });
  });
});

test('the token that is made out to the service is chosen', () => {
  const jwt = (claims: object): string => `x.${Buffer.from(JSON.stringify(claims)).toString('base64url')}.y`;
  const choose = (answer: object): string =>
    chooseTokens({ token_type: 'bearer', access_token: 'opaque', ...answer } as never, 'releap').token;
  const [forUs, other] = [jwt({ aud: ['x', 'releap'] }), jwt({ aud: 'client' })];
  assert.equal(choose({ access_token: other, id_token: forUs }), forUs);
  assert.equal(choose({ access_token: forUs, id_token: other }), forUs);
  assert.equal(choose({ id_token: other }), other);
  for (const access_token of ['opaque', 'a.b.c', 'a..c', `a.${Buffer.from('null').toString('base64url')}.c`])
    assert.throws(() => choose({ access_token }), /no token that a service can read/);
  const { expires_at } = chooseTokens(
    { token_type: 'bearer', access_token: jwt({ aud: 'releap', exp: 1_800_000_000 }) } as never,
    'releap',
  );
  assert.equal(expires_at, '2027-01-15T08:00:00.000Z');
});
