/** What credentials are exchanged for, against a fake of Amazon's API that verifies signatures by itself. */
import assert from 'node:assert/strict';
import { createHash, createHmac } from 'node:crypto';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { after, before, beforeEach, describe, it } from 'node:test';
import { RegistryLogin, type StoredCredential } from '../src/image/registry/registry-login.ts';

const REGION = 'eu-central-1';
const ecr: StoredCredential = {
  host: `123456789012.dkr.ecr.${REGION}.amazonaws.com`,
  kind: 'ecr',
  username: 'AKIDEXAMPLE',
  password: 'wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY',
};

let endpoint = '';
let lifeSeconds = 0;
let requests = 0;
let answer: { status: number; body: unknown } | undefined;
const server = createServer((request, response) => {
  void (async () => {
    requests += 1;
    const body = await text(request);
    const verdict = answer ?? judge(request, body);
    response.writeHead(verdict.status, { 'content-type': 'application/x-amz-json-1.1' });
    response.end(typeof verdict.body === 'string' ? verdict.body : JSON.stringify(verdict.body));
  })();
});

/** Signature Version 4, from its specification. */
function judge(request: IncomingMessage, body: string): { status: number; body: unknown } {
  const { authorization = '' } = request.headers;
  const [, key, scope = '', names = '', signature] =
    /^AWS4-HMAC-SHA256 Credential=([^/]+)\/([^,]+), SignedHeaders=([^,]+), Signature=([0-9a-f]{64})$/.exec(
      authorization,
    ) ?? [];
  const sha256 = (data: string): string => createHash('sha256').update(data).digest('hex');
  const hmac = (secret: string | Buffer, data: string): Buffer =>
    createHmac('sha256', secret).update(data).digest();
  const headers = names.split(';').map((name) => `${name}:${String(request.headers[name])}\n`);
  const canonical = ['POST', request.url, '', headers.join(''), names, sha256(body)].join('\n');
  const toSign = ['AWS4-HMAC-SHA256', request.headers['x-amz-date'], scope, sha256(canonical)].join('\n');
  const signingKey = scope.split('/').reduce<string | Buffer>(hmac, `AWS4${ecr.password}`);
  const isRight =
    key === ecr.username &&
    scope.endsWith(`/${REGION}/ecr/aws4_request`) &&
    names.includes('x-amz-target') &&
    signature === hmac(signingKey, toSign).toString('hex');
  if (!isRight) return { status: 400, body: { __type: 'InvalidSignatureException', message: 'no' } };
  const target = 'AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken';
  if (request.headers['x-amz-target'] !== target)
    return { status: 400, body: { __type: 'UnknownOperation' } };
  const authorizationToken = Buffer.from(`AWS:token:${requests}`).toString('base64');
  const expiresAt = Date.now() / 1000 + lifeSeconds;
  return { status: 200, body: { authorizationData: [{ authorizationToken, expiresAt }] } };
}

before(async () => {
  server.listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});
after(() => {
  server.closeAllConnections();
  server.close();
});
beforeEach(() => {
  requests = 0;
  lifeSeconds = 12 * 3600;
  answer = undefined;
});

describe('a credential of the kind ecr', () => {
  it('is exchanged once for a token, which is used until it expires', async () => {
    const logins = new RegistryLogin(endpoint);
    const all = await Promise.all([logins.of(ecr), logins.of(ecr)]);
    all.push(await logins.of(ecr));
    assert.deepEqual(
      all,
      Array.from({ length: 3 }, () => ({ username: 'AWS', password: 'token:1' })),
    );
    await assert.rejects(logins.of({ ...ecr, password: 'another' }), { code: 'unauthorized' });
  });

  it('is exchanged again when its token is about to expire', async () => {
    lifeSeconds = 60;
    const logins = new RegistryLogin(endpoint);
    assert.equal((await logins.of(ecr)).password, 'token:1');
    assert.equal((await logins.of(ecr)).password, 'token:2');
  });

  it('is refused with the reason, without the secret', async () => {
    const logins = new RegistryLogin(endpoint);
    const body = { __type: 'UnrecognizedClientException', message: `bad token ${ecr.password}` };
    answer = { status: 400, body };
    await assert.rejects(logins.of(ecr), (error: Error) => {
      assert.match(
        error.message,
        /does not accept the project's credential for .*UnrecognizedClientException/,
      );
      assert.ok(!error.message.includes(ecr.password));
      return true;
    });
    answer = { status: 503, body: 'busy' };
    await assert.rejects(logins.of(ecr), { code: 'unreachable' });
    answer = { status: 200, body: 'x'.repeat(64 * 1024 + 1) };
    await assert.rejects(logins.of(ecr), {
      code: 'unreachable',
      message: /cannot be reached for .*its answer has more than 65536 bytes/,
    });
    answer = { status: 200, body: '{"authorizationData":[]}' };
    await assert.rejects(logins.of(ecr), { code: 'failed', message: /answered without a token/ });
    await assert.rejects(new RegistryLogin('http://127.0.0.1:1').of(ecr), {
      code: 'unreachable',
      message: /token service of Amazon ECR in eu-central-1 cannot be reached/,
    });
  });

  it('is used as it is when it is a token already', async () => {
    const token = { ...ecr, username: 'AWS', password: 'eyJ' };
    assert.deepEqual(await new RegistryLogin(endpoint).of(token), { username: 'AWS', password: 'eyJ' });
    assert.equal(requests, 0);
  });
});

it('credentials of other kinds are used as they are', async () => {
  const logins = new RegistryLogin(endpoint);
  for (const [kind, host] of [
    ['basic', 'registry.example'],
    ['ghcr', 'ghcr.io'],
    ['gcr', 'gcr.io'],
    [undefined, 'registry.example'],
  ] as const) {
    const credential = { host, kind, username: '_json_key', password: '{}' };
    assert.deepEqual(await logins.of(credential), { username: '_json_key', password: '{}' });
  }
  assert.equal(requests, 0);
});
