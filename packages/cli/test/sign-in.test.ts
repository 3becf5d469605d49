import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { Browser, discover, post, signInByDevice } from '@releap/testing/browser';
import { startWorld } from '@releap/testing/world';
import { chooseTokens } from '../src/account/tokens.ts';
import { type Accounts, person, type Person, type SignedIn, startAccounts, type User } from './person.ts';
import { sendJson, startRelay } from './relay.ts';
import { json, type Outcome } from './rlp.ts';

let accounts: Accounts;
before(async () => {
  accounts = await startAccounts();
});
after(() => accounts[Symbol.asyncDispose]());

/** The steps of a user in a browser with the address that `rlp login` shows. */
type Visit = (address: string) => Promise<unknown>;

/** Opens the address, signs in and follows the way back. */
const signsInAs =
  (user: User): Visit =>
  async (address) => {
    const browser = new Browser();
    const page = await browser.submit(await browser.open(address), { email: user.email, name: user.name });
    await fetch(page.url);
  };

/** Signs in as with a browser. */
async function browse(who: Person, visit: Visit): Promise<Outcome> {
  let visited: Promise<unknown> | undefined;
  const outcome = await who.rlp(['login', '--url', accounts.url], {
    onStderr: (text) => {
      const address = /^ {2}(http\S+)\n/m.exec(text)?.[1];
      if (address !== undefined) visited ??= visit(address);
    },
  });
  await visited;
  return outcome;
}

/** Types the code that `rlp login --device` shows, and signs in, or says that it is not theirs. */
async function enterCode(stderr: string, user: User | undefined): Promise<void> {
  const [, address = '', code = ''] = /open (\S+) in any browser and enter\n\n {2}(\S+)\n/.exec(stderr) ?? [];
  const browser = new Browser();
  const page = await browser.submit(await browser.open(address), { user_code: code });
  if (user === undefined) await browser.submit(page, { abort: 'yes' });
  else await browser.submit(await browser.submit(page), { email: user.email, name: user.name });
}

/**
 * A service whose issuer is the real one, except for the responses that a test replaces: an expired code, malformed
 * tokens. It is polled at short intervals, so that tests do not wait for it.
 */
async function faultyIssuer(answer: (real: Response) => Promise<object | undefined>) {
  const issuer = await startRelay({ url: accounts.issuer });
  const service = await startRelay({ url: accounts.url });
  const places = await discover(accounts.issuer);
  const here = (name: string): string => places[name]?.replace(accounts.issuer, issuer.url) ?? '';
  const pathOf = (name: string): string => new URL(places[name] ?? '').pathname;
  issuer.answers.set('GET /.well-known/openid-configuration', (_request, response) =>
    sendJson(response, 200, {
      ...places,
      issuer: issuer.url,
      token_endpoint: here('token_endpoint'),
      device_authorization_endpoint: here('device_authorization_endpoint'),
    }),
  );
  const askReal = async (path: string, request: AsyncIterable<Buffer>): Promise<Response> => {
    let body = '';
    for await (const chunk of request) body += chunk.toString('utf8');
    const headers = { 'content-type': 'application/x-www-form-urlencoded' };
    return fetch(accounts.issuer + path, { method: 'POST', headers, body });
  };
  const devicePath = pathOf('device_authorization_endpoint');
  issuer.answers.set(`POST ${devicePath}`, async (request, response) => {
    const real = await askReal(devicePath, request);
    sendJson(response, real.status, { ...((await real.json()) as object), interval: 0.05 });
  });
  const tokenPath = pathOf('token_endpoint');
  issuer.answers.set(`POST ${tokenPath}`, async (request, response) => {
    const real = await askReal(tokenPath, request);
    const { status } = real;
    const changed = await answer(real.clone());
    if (changed === undefined) sendJson(response, status, await real.json());
    else sendJson(response, 'error' in changed ? 400 : status, changed);
  });
  service.answers.set('GET /auth/config', async (_request, response) => {
    const config = (await (await fetch(`${accounts.url}/auth/config`)).json()) as object;
    sendJson(response, 200, { ...config, issuer: issuer.url });
  });
  return {
    url: service.url,
    async [Symbol.asyncDispose]() {
      await service[Symbol.asyncDispose]();
      await issuer[Symbol.asyncDispose]();
    },
  };
}

describe('rlp login', () => {
  test('in a browser: code with PKCE and a loopback address, and the tokens for this user alone', async () => {
    await using ada = await person();
    const user = accounts.user('ada');
    let query: URLSearchParams | undefined;
    const { code, stdout, stderr } = await browse(ada, async (address) => {
      query = new URL(address).searchParams;
      await signsInAs(user)(address);
    });
    assert.equal(code, 0, stderr);
    assert.equal(stdout, `signed in to ${accounts.url} as ${user.email}\n`);
    assert.equal(query?.get('code_challenge_method'), 'S256');
    assert.equal(query?.get('audience'), 'releap');
    assert.match(String(query?.get('redirect_uri')), /^http:\/\/127\.0\.0\.1:\d+\/callback$/);
    const { current, services } = await ada.credentials();
    assert.equal(current, accounts.url);
    const session = services[accounts.url];
    assert.equal(session?.user.email, user.email);
    assert.equal(await ada.fileMode(), 0o600);
    assert.ok(session.token.length > 10 && (session.refresh_token?.length ?? 0) > 10);
    for (const token of [session.token, String(session.refresh_token)])
      assert.ok(!stdout.includes(token) && !stderr.includes(token));
    const who = await ada.rlp(['whoami']);
    assert.ok(who.stdout.startsWith(`${user.email} (ada) at http:`), who.stdout);
    assert.match(who.stdout, / at http:\S+\nno project in use\n$/);
  });

  test('a redirect with another state is refused, and the right one is still accepted', async () => {
    await using ada = await person();
    const statuses: number[] = [];
    const outcome = await browse(ada, async (address) => {
      const back = new URL(new URL(address).searchParams.get('redirect_uri') ?? '');
      for (const query of ['?code=stolen&state=guessed', '', '?error=access_denied'])
        statuses.push((await fetch(`${back.href}${query}`)).status);
      await signsInAs(accounts.user('ada'))(address);
    });
    assert.deepEqual([outcome.code, statuses], [0, [404, 404, 404]], outcome.stderr);
  });

  test('a refusal of the issuer is printed, and nothing is stored', async () => {
    await using ada = await person();
    const { code, stdout, stderr } = await browse(ada, async (address) => {
      // Where an issuer sends a browser whose user has said no.
      const { searchParams } = new URL(address);
      const back = new URL(searchParams.get('redirect_uri') ?? '');
      for (const [name, value] of Object.entries({
        error: 'access_denied',
        state: searchParams.get('state') ?? '',
        iss: accounts.issuer,
      }))
        back.searchParams.set(name, value);
      await fetch(back);
    });
    assert.deepEqual([code, stdout], [3, '']);
    assert.match(stderr, /signing in at http:\S+ did not work: access_denied/);
    assert.ok(!existsSync(join(ada.config, 'releap/credentials.json')));
  });

  test('--device: shows a code, and waits as the issuer says', async () => {
    await using ada = await person();
    const user = accounts.user('ada');
    let entered: Promise<void> | undefined;
    const { code, stdout, stderr } = await ada.rlp(['login', '--device', '--json', '--url', accounts.url], {
      onStderr: (text) => {
        if (text.includes('or open')) entered ??= enterCode(text, user);
      },
    });
    await entered;
    assert.equal(code, 0, stderr);
    const told = JSON.parse(stdout) as { user: { id: string } };
    assert.deepEqual(told, { url: accounts.url, user: { id: told.user.id, email: user.email } });
    assert.match(stderr, /open \S+\/device in any browser and enter\n\n {2}\w{4}-\w{4}\n/);
    const { services } = await ada.credentials();
    assert.equal(services[accounts.url]?.user.id, told.user.id);
  });

  test('--device: a code that is refused or has run out', async () => {
    await using ada = await person();
    const login = (url: string, enter: (text: string) => Promise<void>): Promise<Outcome> => {
      let entered: Promise<void> | undefined;
      return ada.rlp(['login', '--device', '--url', url], {
        onStderr: (text) => {
          if (text.includes('or open')) entered ??= enter(text);
        },
      });
    };
    await using real = await faultyIssuer(async () => undefined);
    const refused = await login(real.url, (text) => enterCode(text, undefined));
    assert.equal(refused.code, 3);
    assert.match(refused.stderr, /did not work: access_denied/);
    await using late = await faultyIssuer(async () => ({ error: 'expired_token' }));
    const expired = await login(late.url, async () => undefined);
    assert.equal(expired.code, 3);
    assert.match(expired.stderr, /did not work: expired_token/);
  });

  test('uses the ID token where access tokens are opaque, if the service accepts it', async () => {
    await using ada = await person();
    await using opaque = await faultyIssuer(async (real) =>
      real.status === 200
        ? { ...((await real.json()) as object), access_token: 'nobody-can-read-this' }
        : undefined,
    );
    let entered: Promise<void> | undefined;
    const outcome = await ada.rlp(['login', '--device', '--url', opaque.url], {
      onStderr: (text) => {
        if (text.includes('or open')) entered ??= enterCode(text, accounts.user('ada'));
      },
    });
    assert.deepEqual([outcome.code, outcome.stdout], [3, '']);
    assert.match(outcome.stderr, /rlp: .*(audience|issuer|not valid).*\n$/);
  });

  test('a service without an issuer, another kind of server, one that is down', async () => {
    await using bare = await startWorld();
    await using ada = await person();
    const none = await ada.rlp(['login', '--url', bare.url]);
    assert.deepEqual(
      [none.code, none.stderr],
      [1, 'rlp: sign-in is not configured: this server has no OIDC issuer\n'],
    );
    await using other = await startRelay();
    other.answers.set('GET /auth/config', (_request, response) =>
      sendJson(response, 404, { error: 'no such path' }),
    );
    assert.match((await ada.rlp(['login', '--url', other.url])).stderr, /is it a Releap service/);
    other.answers.set('GET /auth/config', (_request, response) => sendJson(response, 200, {}));
    assert.match((await ada.rlp(['login', '--url', other.url])).stderr, /is it a Releap service/);
    const down = await ada.rlp(['login', '--url', 'http://127.0.0.1:2']);
    assert.deepEqual([down.code, down.stdout], [3, '']);
    assert.match(down.stderr, /nothing listens there/);
  });

  test('an issuer that is down, that is another one, or that has no TLS', async () => {
    await using ada = await person();
    await using relay = await startRelay({ url: accounts.url });
    const config = { client_id: 'releap-cli', audience: 'releap', scopes: ['openid'] };
    const issuers = {
      'http://127.0.0.1:2': /did not work: .*/,
      'http://issuer.example.com': /must use https/,
      [`${relay.url}/other`]: /did not work/,
    };
    for (const [issuer, said] of Object.entries(issuers)) {
      relay.answers.set('GET /auth/config', (_request, response) =>
        sendJson(response, 200, { ...config, issuer }),
      );
      const outcome = await ada.rlp(['login', '--device', '--url', relay.url]);
      assert.equal(outcome.code, 3);
      assert.match(outcome.stderr, said);
    }
  });

  test('interrupted while it waits for the browser', async () => {
    await using ada = await person();
    const outcome = await ada.rlpProcess(['login', '--url', accounts.url], {
      started: (child) => child.stderr?.on('data', () => child.kill('SIGINT')),
    });
    assert.equal(outcome.code, 130);
  });
});

describe('a sign-in', () => {
  const past = new Date(Date.now() - 1000).toISOString();
  const sessionOf = (who: SignedIn, more: object) => who.remember(accounts.sessionOf(who, more));

  test('is refreshed when it expires, once for concurrent commands', async () => {
    await using ada = await accounts.signedIn('ada');
    await sessionOf(ada, { expires_at: past });
    // In processes of their own: what keeps them apart is a lock file.
    const outcomes = await Promise.all([1, 2, 3].map(() => ada.rlpProcess(['org', 'ls', '--json'])));
    // A refresh token is taken once: one that was shown twice would have ended the sign-in.
    for (const { code, stderr } of outcomes) assert.deepEqual([code, stderr], [0, '']);
    const session = (await ada.credentials()).services[accounts.url];
    assert.ok(
      session?.refresh_token !== ada.tokens.refresh_token &&
        Date.parse(session?.expires_at ?? '') > Date.now(),
    );
    assert.equal(await ada.fileMode(), 0o600);
    assert.ok(!existsSync(join(ada.config, 'releap/credentials.json.lock')));
    await sessionOf(ada, { ...session, expires_at: past });
    assert.equal((await ada.rlp(['org', 'ls'])).code, 0, 'the new refresh token is good');
  });

  test('that the issuer does not or cannot refresh: exit code 3, and what to do', async () => {
    await using ada = await accounts.signedIn('ada');
    await sessionOf(ada, { expires_at: past, refresh_token: 'used' });
    const refused = await ada.rlp(['org', 'ls']);
    assert.deepEqual(refused, {
      code: 3,
      stdout: '',
      stderr: 'rlp: the sign-in has ended: rlp login signs in again\n',
    });
    await sessionOf(ada, { expires_at: past, refresh_token: undefined });
    assert.match((await ada.rlp(['org', 'ls'])).stderr, /has ended: rlp login signs in again/);
    await using issuer = await startRelay();
    await sessionOf(ada, { expires_at: past, issuer: issuer.url });
    assert.match((await ada.rlp(['org', 'ls'])).stderr, /has another issuer than when you signed in/);
    assert.deepEqual(issuer.calls, []);
    // A token is sent only to the issuer that gave it: it is still valid.
    await sessionOf(ada, { expires_at: past });
    assert.equal((await ada.rlp(['org', 'ls'])).code, 0);
  });

  test('that the service does not accept any more: says to sign in again', async () => {
    await using ada = await accounts.signedIn('ada');
    const claims = { iss: accounts.issuer, aud: 'releap', sub: ada.user.id, exp: 4_000_000_000 };
    const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url');
    await sessionOf(ada, { token: `${part({ alg: 'RS256', kid: 'old' })}.${part(claims)}.c2lnbmF0dXJl` });
    const { code, stdout, stderr } = await ada.rlp(['project', 'ls']);
    assert.deepEqual([code, stdout], [3, '']);
    assert.match(stderr, /^rlp: the OIDC token is not valid: .*: rlp login signs in again\n$/);
  });

  test('is asked for where there is none, also for another service', async () => {
    await using ada = await accounts.signedIn('ada');
    await using other = await person();
    const nobody = await other.rlp(['org', 'ls', '--url', accounts.url]);
    assert.deepEqual(
      [nobody.code, nobody.stderr],
      [3, `rlp: not signed in to ${accounts.url}: run rlp login\n`],
    );
    assert.equal((await ada.rlp(['org', 'ls', '--url', 'http://127.0.0.1:2'])).code, 3);
    assert.match((await other.rlp(['org', 'ls'])).stderr, /no service is configured: name it with --url/);
  });

  test('in a file that others may read, or that is broken, is not used, and not shown', async () => {
    await using ada = await accounts.signedIn('ada');
    await ada.remember(accounts.sessionOf(ada), 0o644);
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

  test('a lock that a killed process left behind does not block the next one', async () => {
    await using ada = await accounts.signedIn('ada');
    const lock = join(ada.config, 'releap/credentials.json.lock');
    await writeFile(lock, '1\n');
    await utimes(lock, new Date(0), new Date(0));
    assert.equal((await ada.rlp(['project', 'use', '--none'])).code, 0);
    assert.ok(!existsSync(lock));
  });
});

describe('rlp logout', () => {
  test('removes the tokens, and revokes them and the keys of this machine', async () => {
    await using ada = await accounts.signedIn('ada');
    const web = (await ada.rlp(['project', 'create', 'web'])).stdout.trim();
    assert.equal((await ada.rlp(['project', 'use', 'web'])).code, 0);
    const outcome = await ada.rlp(['logout']);
    assert.deepEqual(outcome, { code: 0, stdout: '', stderr: '' });
    assert.deepEqual(await ada.credentials(), { services: {} });
    const { api_keys } = (await ada.call('GET', `/projects/${web}/api-keys?include_revoked=true`)).body;
    assert.notEqual(api_keys[0].revoked_at, null);
    const { token_endpoint: place = '' } = await discover(accounts.issuer);
    const { refresh_token } = ada.tokens;
    const again = await post(place, { grant_type: 'refresh_token', client_id: 'releap-cli', refresh_token });
    assert.equal(again.status, 400);
    assert.deepEqual(json(await ada.rlp(['logout', '--json', '--url', accounts.url])), {
      url: accounts.url,
      signed_out: false,
    });
  });

  test('of a service that is down still removes them, and says what was not revoked', async () => {
    await using ada = await person();
    const user = { id: '11111111-1111-4111-8111-111111111111', ...accounts.user('ada') };
    const tokens = await signInByDevice(accounts.issuer, user);
    const session = accounts.sessionOf({ tokens, user }).services[accounts.url];
    await ada.remember({ current: 'http://127.0.0.1:2', services: { 'http://127.0.0.1:2': session } });
    const outcome = await ada.rlp(['logout']);
    assert.equal(outcome.code, 0);
    assert.match(outcome.stderr, /signed out here, but not all was revoked: cannot reach/);
    assert.deepEqual(await ada.credentials(), { services: {} });
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
