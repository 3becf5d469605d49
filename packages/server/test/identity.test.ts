import assert from 'node:assert/strict';
import { request } from 'node:http';
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { startControl, type Control } from '@releap/control';
import { TOKENS } from '@releap/testing/credentials';
import { freshDatabase } from '@releap/testing/postgres';
import { pino } from 'pino';
import { issuerOf } from '../src/identity/issuer.ts';
import { startIdentity, type IdentityServer } from '../src/identity/server.ts';
import { Browser, discover, post, signInByCode, signInByDevice, type Tokens } from '@releap/testing/browser';

const log = pino({ level: process.env['RELEAP_TEST_LOG'] ?? 'silent' });
const ADA = { email: 'Ada@example.org', name: 'Ada Lovelace' };

describe('the development identity provider', () => {
  let home: string;
  let identity: IdentityServer;
  let control: Control;

  before(async () => {
    home = await mkdtemp(path.join(tmpdir(), 'releap-identity-'));
    identity = await startIdentity({ home, port: 0, audience: 'releap', log });
    control = await startControl({
      databaseUrl: await freshDatabase(),
      databaseConnections: 4,
      listen: { host: '127.0.0.1', port: 0 },
      tokens: TOKENS,
      region: { id: 'here' },
      store: { type: 'folder', path: path.join(home, 'store') },
      oidc: { issuer: identity.issuer, audience: 'releap', usersOf: 'development' },
      log,
    });
  });
  after(async () => {
    await control?.close();
    await identity?.close();
    await rm(home, { recursive: true, force: true });
  });

  const me = async (token: string): Promise<{ status: number; body: Record<string, string> }> => {
    const response = await fetch(`${control.url}/me`, { headers: { authorization: `Bearer ${token}` } });
    return { status: response.status, body: (await response.json()) as Record<string, string> };
  };
  const claims = (token: string): Record<string, unknown> =>
    JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString('utf8')) as Record<
      string,
      unknown
    >;

  test('GET /auth/config tells a command line where to sign in', async () => {
    const response = await fetch(`${control.url}/auth/config`);
    assert.deepEqual(await response.json(), {
      issuer: identity.issuer,
      client_id: 'releap-cli',
      audience: 'releap',
      scopes: ['openid', 'profile', 'email', 'offline_access'],
    });
  });

  test('signs a terminal in by device code; the token is a JWT for this API that the control plane takes', async () => {
    const tokens = await signInByDevice(identity.issuer, ADA);
    const { aud, iss, email, name } = claims(tokens.access_token);
    assert.deepEqual([aud, iss, email, name], ['releap', identity.issuer, ADA.email, ADA.name]);
    const user = await me(tokens.access_token);
    assert.equal(user.status, 200);
    assert.deepEqual([user.body['email'], user.body['name']], [ADA.email, ADA.name]);
    // An id token is for the client that asked for it.
    assert.equal((await me(tokens.id_token)).status, 401);
  });

  test('signs in by authorization code with PKCE on a loopback redirect, on any port; the same address is the same user', async () => {
    const first = await signInByDevice(identity.issuer, ADA);
    const second = await signInByCode(identity.issuer, { email: 'ada@EXAMPLE.org', name: 'Ada' });
    const dashboard = await signInByCode(identity.issuer, ADA, {
      clientId: 'releap-dashboard',
      redirect: 'http://localhost:5173/auth/callback',
    });
    const ids = await Promise.all(
      [first, second, dashboard].map(async ({ access_token: token }) => (await me(token)).body['id']),
    );
    assert.equal(new Set(ids).size, 1);
  });

  test('refreshes, and takes a refresh token once', async () => {
    const tokens = await signInByDevice(identity.issuer, ADA);
    const { token_endpoint: place = '' } = await discover(identity.issuer);
    const ask = { grant_type: 'refresh_token', client_id: 'releap-cli', refresh_token: tokens.refresh_token };
    const fresh = await post<Tokens>(place, ask);
    assert.equal(fresh.status, 200, JSON.stringify(fresh.body));
    assert.equal((await me(fresh.body.access_token)).status, 200);
    assert.equal((await post<Tokens>(place, ask)).status, 400);
  });

  test('keeps its keys for its owner alone, and tokens stay good over a restart', async () => {
    const tokens = await signInByDevice(identity.issuer, ADA);
    const file = path.join(home, 'identity-keys.json');
    assert.equal((await stat(file)).mode & 0o777, 0o600);
    const keys = await readFile(file, 'utf8');
    const { port } = new URL(identity.issuer);
    await identity.close();
    identity = await startIdentity({ home, port: Number(port), audience: 'releap', log });
    assert.equal(await readFile(file, 'utf8'), keys);
    assert.equal((await me(tokens.access_token)).status, 200);
  });

  const begin = async (browser: Browser): Promise<Awaited<ReturnType<Browser['open']>>> => {
    const { authorization_endpoint: place = '' } = await discover(identity.issuer);
    const query = new URLSearchParams({
      client_id: 'releap-cli',
      response_type: 'code',
      redirect_uri: 'http://127.0.0.1:1/callback',
      scope: 'openid',
      code_challenge: 'a'.repeat(43),
      code_challenge_method: 'S256',
    });
    return browser.open(`${place}?${query.toString()}`);
  };

  test('shows what was typed as text, never as HTML', async () => {
    const browser = new Browser();
    const page = await begin(browser);
    const hostile = '"><script>alert(1)</script>@x y';
    const again = await browser.submit(page, { email: hostile, name: "<b>`'" });
    assert.equal(again.status, 400);
    assert.ok(!again.text.includes('<script>'), again.text);
    assert.ok(!again.text.includes('<b>'), again.text);
    assert.match(again.headers.get('content-security-policy') ?? '', /default-src 'none'/);
    assert.equal((await browser.submit(page, { email: 'a@b', name: 'a\u0007b' })).status, 400);
  });

  test('a form that another site sends, or another browser, signs no user in', async () => {
    const browser = new Browser();
    const page = await begin(browser);
    const foreign = await browser.submit(page, ADA, { headers: { origin: 'https://evil.example' } });
    assert.equal(foreign.status, 403);
    const local = await browser.submit(page, ADA, { headers: { origin: 'http://127.0.0.1:8080' } });
    assert.equal(local.status, 403);
    assert.equal((await new Browser().submit(page, ADA)).status, 400);
    assert.equal((await browser.submit(page, ADA)).status, 303);
  });

  test('redirects to nothing but loopback, wants PKCE, and knows no other client', async () => {
    const { authorization_endpoint: place = '' } = await discover(identity.issuer);
    const good = {
      client_id: 'releap-cli',
      response_type: 'code',
      redirect_uri: 'http://127.0.0.1:1/callback',
      scope: 'openid',
      code_challenge: 'a'.repeat(43),
      code_challenge_method: 'S256',
    };
    const ask = async (change: Record<string, string>): Promise<string> =>
      (await new Browser().open(`${place}?${new URLSearchParams({ ...good, ...change }).toString()}`)).url;
    for (const redirect of [
      'https://evil.example/callback',
      'http://127.0.0.1:1/other',
      'http://127.0.0.1.evil.example/callback',
    ]) {
      assert.ok((await ask({ redirect_uri: redirect })).startsWith(identity.issuer), redirect);
    }
    assert.ok((await ask({ client_id: 'somebody' })).startsWith(identity.issuer));
    assert.match(await ask({ code_challenge: '' }), /error=invalid_request/);
  });

  test('answers under its own names only, against DNS rebinding', async () => {
    const { port } = new URL(identity.issuer);
    const status = await new Promise<number>((resolve, reject) => {
      request(
        {
          host: '127.0.0.1',
          port,
          path: '/.well-known/openid-configuration',
          headers: { host: `evil.example:${port}` },
        },
        (response) => resolve(response.resume().statusCode ?? 0),
      )
        .on('error', reject)
        .end();
    });
    assert.equal(status, 403);
  });

  test('stops a sign-in that the user does not recognise', async () => {
    const places = await discover(identity.issuer);
    const { body } = await post<Record<string, string>>(places['device_authorization_endpoint'] ?? '', {
      client_id: 'releap-cli',
    });
    const browser = new Browser();
    let page = await browser.open(body['verification_uri'] ?? '');
    page = await browser.submit(page, { user_code: 'XXXX-XXXX' });
    assert.match(page.text, /unknown or has expired/);
    page = await browser.submit(page, { user_code: body['user_code'] ?? '' });
    await browser.submit(page, { abort: 'yes' });
    const poll = await post<{ error: string }>(places['token_endpoint'] ?? '', {
      grant_type: 'urn:ietf:params:oauth:grant-type:device_code',
      device_code: body['device_code'] ?? '',
      client_id: 'releap-cli',
    });
    assert.equal(poll.body.error, 'access_denied');
  });

  test('is off as soon as an issuer is configured, and outside of the all-in-one server', async () => {
    const real = {
      home,
      oidc: { issuer: 'https://id.example.org/', audience: 'x', clientId: 'y', trustEmail: false },
    };
    assert.deepEqual(await issuerOf(real, true, log), { oidc: real.oidc });
    const none = { home, oidc: { audience: 'x', clientId: 'y', trustEmail: false } };
    assert.deepEqual(await issuerOf(none, false, log), {});
    const { identity: own, oidc } = await issuerOf(none, true, log);
    assert.equal(oidc?.issuer, own?.issuer);
    await own?.close();
  });
});
