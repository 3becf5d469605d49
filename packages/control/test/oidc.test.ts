import assert from 'node:assert/strict';
import { once } from 'node:events';
import { request } from 'node:http';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import * as fc from 'fast-check';
import { exportSPKI, importJWK, SignJWT, UnsecuredJWT } from 'jose';
import { OAuth2Server } from 'oauth2-mock-server';
import { AUDIENCE, startSignedInWorld, TestIssuer, type SignedInWorld } from '@releap/testing/issuer';
import { caller, startWorld, until, type Answer } from '@releap/testing/world';
import { propertyRuns } from '@releap/testing/repetitions';

describe('OIDC tokens on the management plane', () => {
  let world: SignedInWorld;
  before(async () => {
    world = await startSignedInWorld();
  });
  after(() => world[Symbol.asyncDispose]());

  const me = (token: string): Promise<Answer> => caller(() => world.url, token, '')('GET', '/me');
  const refused = async (token: string, why: RegExp): Promise<void> => {
    const answer = await me(token);
    assert.equal(answer.status, 401, answer.text);
    assert.match(answer.body.error, why);
    assert.match(answer.headers.get('www-authenticate') ?? '', /^Bearer/);
  };

  test('a valid one creates the user on first sight, with a personal organization that they own', async () => {
    const token = await world.issuer.token('ada', { claims: { email: 'ada@example.org', name: 'Ada' } });
    const answer = await me(token);
    assert.equal(answer.status, 200);
    assert.deepEqual({ ...answer.body, id: '' }, { id: '', email: 'ada@example.org', name: 'Ada' });
    const orgs = await caller(() => world.url, token, '')('GET', '/orgs');
    assert.equal(orgs.body.organizations.length, 1);
    assert.deepEqual(
      { ...orgs.body.organizations[0], id: '' },
      { id: '', name: 'Ada', personal: true, role: 'owner' },
    );
  });

  test('many first requests at the same time make one user and one organization', async () => {
    const token = await world.issuer.token('racer');
    const answers = await Promise.all(Array.from({ length: 20 }, () => me(token)));
    assert.equal(new Set(answers.map((answer) => answer.body.id)).size, 1);
    const orgs = await caller(() => world.url, token, '')('GET', '/orgs');
    assert.equal(orgs.body.organizations.length, 1);
  });

  test('e-mail address and name follow the issuer; claims that a token does not have stay', async () => {
    const first = await me(
      await world.issuer.token('grace', { claims: { email: 'g@example.org', name: 'G' } }),
    );
    const second = await me(
      await world.issuer.token('grace', { claims: { email: 'grace@example.org', name: 'Grace' } }),
    );
    const third = await me(
      await world.issuer.token('grace', { claims: { email: undefined, name: undefined } }),
    );
    assert.equal(second.body.id, first.body.id);
    assert.deepEqual(third.body, { id: first.body.id, email: 'grace@example.org', name: 'Grace' });
  });

  test('text of the issuer is harmless by the time it is stored', async () => {
    const claims = { email: 'not an address\u0000', name: `a\u0000\u202eb${'x'.repeat(9000 - 6000)}` };
    const answer = await me(await world.issuer.token('odd', { claims }));
    assert.equal(answer.status, 200, answer.text);
    assert.equal(answer.body.email, '');
    assert.match(answer.body.name, /^a bx+$/);
    assert.ok(answer.body.name.length <= 200);
  });

  /** A token for which the answer is this status: if the machine stalled before it was asked for, another one is made. */
  const tokenFor = async (status: number, make: (now: number) => Promise<string>): Promise<string> => {
    let token = '';
    await until(async () => {
      token = await make(Math.floor(Date.now() / 1000));
      return (await me(token)).status === status;
    });
    return token;
  };

  test('expired, and not valid yet: 401, with 60 s for clocks that differ', async () => {
    await refused(await world.issuer.token('ada', { expiresIn: -61 }), /expired/);
    await tokenFor(200, () => world.issuer.token('ada', { expiresIn: -50 }));
    await tokenFor(401, (now) => world.issuer.token('ada', { claims: { nbf: now + 70 } }));
    const now = Math.floor(Date.now() / 1000);
    await refused(await world.issuer.token('ada', { claims: { nbf: now + 3_600 } }), /not valid yet/);
    assert.equal((await me(await world.issuer.token('ada', { claims: { nbf: now + 50 } }))).status, 200);
    await refused(await world.issuer.token('ada', { claims: { exp: undefined } }), /exp/);
  });

  test('a valid one is refused once it has expired, although its signature was verified before', async () => {
    const token = await tokenFor(200, () => world.issuer.token('ada', { expiresIn: -52 }));
    await until(async () => (await me(token)).status === 401);
    await refused(token, /expired/);
  });

  test('wrong audience, wrong issuer to the letter, no subject: 401', async () => {
    await refused(await world.issuer.token('ada', { claims: { aud: 'other' } }), /audience/);
    await refused(await world.issuer.token('ada', { claims: { aud: undefined } }), /audience|aud/);
    assert.equal(
      (await me(await world.issuer.token('ada', { claims: { aud: ['x', AUDIENCE] } }))).status,
      200,
    );
    await refused(await world.issuer.token('ada', { claims: { iss: `${world.issuer.url}/` } }), /issuer/);
    await refused(await world.issuer.token('ada', { claims: { iss: 'https://evil.example' } }), /issuer/);
    await refused(await world.issuer.token('ada', { claims: { sub: undefined } }), /sub/);
    await refused(await world.issuer.token('ada', { claims: { sub: '' } }), /sub/);
    await refused(await world.issuer.token('ada', { claims: { sub: 'a\u0000b' } }), /sub/);
    await refused(await world.issuer.token('ada', { claims: { sub: 'x'.repeat(256) } }), /sub/);
  });

  test('alg none, HS256 with the public key, and another algorithm than the key is for: 401', async () => {
    const claims = {
      iss: world.issuer.url,
      aud: AUDIENCE,
      sub: 'ada',
      exp: Math.floor(Date.now() / 1000) + 60,
    };
    const unsigned = new UnsecuredJWT(claims).encode();
    await refused(unsigned, /.*/);
    await refused(`${unsigned}AAAA`, /.*/);
    const jwk = world.issuer.keys[0]?.publicJwk ?? {};
    const pem = await exportSPKI((await importJWK(jwk, 'ES256', { extractable: true })) as never);
    for (const secret of [pem, JSON.stringify(jwk)]) {
      const forged = await new SignJWT(claims)
        .setProtectedHeader({ alg: 'HS256', kid: jwk.kid ?? '' })
        .sign(new TextEncoder().encode(secret));
      await refused(forged, /algorithm is not allowed/);
    }
    const stranger = await TestIssuer.start();
    await using _ = stranger;
    const { kid } = world.issuer.keys[0] ?? { kid: '' };
    await refused(
      await stranger.token('ada', { claims: { iss: world.issuer.url }, header: { kid } }),
      /signature does not match/,
    );
  });

  test('tampered, cut off, empty, not a JWT, of another type, with an unknown critical header: 401', async () => {
    const token = await world.issuer.token('ada');
    const [head = '', body = '', signature = ''] = token.split('.');
    const claims = JSON.parse(Buffer.from(body, 'base64url').toString()) as object;
    const other = Buffer.from(JSON.stringify({ ...claims, sub: 'grace' })).toString('base64url');
    for (const bad of [
      `${head}.${other}.${signature}`,
      `${head}.${body}.`,
      `${head}.${body}`,
      token.slice(0, -4),
      'abc',
      '..',
      'a.b.c',
      `${token}.${token}`,
    ]) {
      await refused(bad, /not valid/);
    }
    await refused(await world.issuer.token('ada', { header: { typ: 'logout+jwt' } }), /typ/);
    await refused(await world.issuer.token('ada', { header: { typ: 'dpop+jwt' } }), /typ/);
    assert.equal((await me(await world.issuer.token('ada', { header: { typ: 'JWT' } }))).status, 200);
  });

  test('huge ones are refused before they are parsed', async () => {
    await refused(await world.issuer.token('ada', { claims: { groups: 'g'.repeat(8_000) } }), /at most 8192/);
    assert.equal(
      (await me(await world.issuer.token('ada', { claims: { groups: 'g'.repeat(5_000) } }))).status,
      200,
    );
    const answer = await me(`a.${'b'.repeat(20_000)}.c`);
    assert.equal(answer.status, 400);
    assert.match(answer.body.error, /too large/);
  });

  test('no header, another scheme, and two headers are 401 on both planes', async () => {
    const token = await world.issuer.token('ada');
    for (const path of ['/me', '/vms']) {
      const good = path === '/me' ? token : world.call.key;
      for (const authorization of [[], ['Basic YTpi'], ['Bearer'], [`Bearer ${good}`, `Bearer ${good}`]]) {
        const call = request(`${world.url}${path}`, { headers: { authorization } as never });
        call.end();
        const [response] = (await once(call, 'response')) as [{ statusCode: number; resume(): void }];
        response.resume();
        assert.equal(response.statusCode, 401, `${path} with ${authorization.length} headers`);
      }
    }
  });

  test('a management route refuses an API key, and a workload route an OIDC token, in words', async () => {
    const withKey = await world.call('GET', '/me');
    assert.equal(withKey.status, 401);
    assert.match(withKey.body.error, /OIDC token of a signed-in user, and not an API key/);
    await refused(`rlpv_${'a'.repeat(43)}`, /not an API key/);
    const withToken = await caller(() => world.url, await world.issuer.token('ada'), '')('GET', '/vms');
    assert.equal(withToken.status, 401);
    assert.match(withToken.body.error, /API key \(rlp_…\), and not the OIDC token/);
  });

  test('any malformed token is refused, and never causes an internal error', async () => {
    const part = fc.oneof(
      fc.base64String({ maxLength: 60 }).map((text) => text.replaceAll(/[+/=]/g, '')),
      fc.jsonValue().map((value) => Buffer.from(JSON.stringify(value)).toString('base64url')),
      fc
        .record({
          alg: fc.constantFrom('none', 'HS256', 'RS256', 'ES256', 'dir', ''),
          kid: fc.string(),
          typ: fc.string(),
        })
        .map((header) => Buffer.from(JSON.stringify(header)).toString('base64url')),
    );
    const anything = fc.oneof(
      fc.array(part, { minLength: 1, maxLength: 6 }).map((parts) => parts.join('.')),
      fc.string({
        unit: fc.integer({ min: 0x21, max: 0x7e }).map((code) => String.fromCharCode(code)),
        minLength: 1,
      }),
    );
    await fc.assert(
      fc.asyncProperty(anything, async (token) => {
        const answer = await me(token.slice(0, 4_000));
        assert.equal(answer.status, 401, `${token}: ${answer.text}`);
      }),
      { numRuns: propertyRuns(150) },
    );
  });

  test('a key that the issuer has just started to use is found, and one that it withdrew expires', async () => {
    const old = await world.issuer.token('ada');
    const before = world.issuer.keys;
    const fresh = await world.issuer.addKey();
    await sleep(220);
    assert.equal((await me(await world.issuer.token('ada', { key: fresh }))).status, 200);
    assert.equal((await me(old)).status, 200);
    world.issuer.keys = [fresh];
    // The next request to the issuer, for any reason, removes the old key.
    await sleep(220);
    const unknown = await world.issuer.token('ada', { header: { kid: 'nobody' } });
    await refused(unknown, /key that the issuer does not have/);
    await refused(old, /key that the issuer does not have/);
    assert.ok(before.length > 0);
  });

  test('tokens without a key id are tried with each of the keys', async () => {
    const second = await world.issuer.addKey();
    await sleep(220);
    assert.equal((await me(await world.issuer.token('ada', { key: second }))).status, 200);
    for (const key of world.issuer.keys) {
      const token = await world.issuer.token('ada', { key, header: { kid: undefined } as never });
      assert.equal((await me(token)).status, 200);
    }
    const stranger = await TestIssuer.start();
    await using _ = stranger;
    await refused(
      await stranger.token('ada', { claims: { iss: world.issuer.url }, header: { kid: undefined } as never }),
      /signature does not match/,
    );
  });
});

describe('the issuer', () => {
  test('is not asked more often than the cool-down allows, however many unknown keys tokens name', async () => {
    await using world = await startSignedInWorld({}, { coolDownMs: 60_000 });
    await world.as('ada');
    const before = world.issuer.askedForKeys;
    const answers = await Promise.all(
      Array.from({ length: 200 }, async (_, n) => {
        const token = await world.issuer.token('ada', { header: { kid: `made-up-${n}` } });
        return caller(() => world.url, token, '')('GET', '/me');
      }),
    );
    assert.ok(answers.every((answer) => answer.status === 401));
    assert.ok(world.issuer.askedForKeys - before <= 1, `${world.issuer.askedForKeys - before} questions`);
    await world.as('grace');
  });

  test('while it is unavailable, known keys work; unknown ones are 503, as are all before the first response', async () => {
    await using world = await startSignedInWorld({}, { coolDownMs: 1, maxKeyAgeMs: 50 });
    const ada = await world.as('ada');
    await world.issuer.down();
    await sleep(60);
    for (let n = 0; n < 3; n++) assert.equal((await ada('GET', '/me')).status, 200);
    const unknown = await world.issuer.token('ada', { header: { kid: 'nobody' } });
    const answer = await caller(() => world.url, unknown, '')('GET', '/me');
    assert.equal(answer.status, 503);
    assert.ok(Number(answer.headers.get('retry-after')) > 0);
    await world.restart();
    assert.equal((await ada('GET', '/me')).status, 503);
    await world.issuer.up();
    await sleep(5);
    assert.equal((await ada('GET', '/me')).status, 200);
  });

  test('that claims to be another one is refused', async () => {
    await using world = await startSignedInWorld({}, { coolDownMs: 1 });
    world.issuer.claimedIssuer = `${world.issuer.url}/`;
    const token = await world.issuer.token('ada');
    assert.equal((await caller(() => world.url, token, '')('GET', '/me')).status, 503);
  });

  test('may be missing: management routes say so with 503, the others work', async () => {
    await using world = await startWorld();
    const answer = await caller(() => world.url, 'a.b.c', '')('GET', '/orgs');
    assert.equal(answer.status, 503);
    assert.match(answer.body.error, /RELEAP_OIDC_ISSUER/);
    assert.equal((await caller(() => world.url, 'a.b.c', '')('GET', '/auth/config')).status, 503);
    assert.equal((await world.call('GET', '/vms')).status, 200);
  });
});

test('a second, independent provider (oauth2-mock-server): its tokens are accepted alike', async () => {
  const provider = new OAuth2Server();
  await provider.issuer.keys.generate('RS256');
  await provider.start(0, '127.0.0.1');
  try {
    const issuer = provider.issuer.url ?? '';
    await using world = await startWorld({ oidc: { issuer, audience: 'releap' } });
    const build = (payload: Record<string, unknown>): Promise<string> =>
      provider.issuer.buildToken({
        scopesOrTransform: (_header, claims) => {
          Object.assign(claims, { aud: 'releap', sub: 'joan', email: 'joan@example.org' }, payload);
        },
      });
    const call = async (token: string): Promise<Answer> => caller(() => world.url, token, '')('GET', '/me');
    const good = await call(await build({}));
    assert.equal(good.status, 200, good.text);
    assert.equal(good.body.email, 'joan@example.org');
    assert.equal((await call(await build({ aud: 'other' }))).status, 401);
    assert.equal((await call(await build({ iss: 'http://other' }))).status, 401);
    assert.equal((await call(await build({ exp: 1 }))).status, 401);
  } finally {
    await provider.stop();
  }
});
