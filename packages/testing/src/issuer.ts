/** An OpenID Connect issuer inside the test's process, and people who are signed in at it. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import {
  exportJWK,
  generateKeyPair,
  SignJWT,
  type CryptoKey,
  type JWK,
  type JWTHeaderParameters,
} from 'jose';
import type { ControlOptions, OidcOptions } from '@releap/control';
import { endFirst } from './postgres.ts';
import { caller, startWorld, type Caller, type World } from './world.ts';

export const AUDIENCE = 'releap-tests';

interface Key {
  kid: string;
  privateKey: CryptoKey;
  publicJwk: JWK;
}

export interface TokenOptions {
  claims?: Record<string, unknown>;
  header?: Partial<JWTHeaderParameters>;
  expiresIn?: number;
  key?: Key;
}

export class TestIssuer implements AsyncDisposable {
  url = '';
  /** Requests by path. */
  readonly asked = new Map<string, number>();
  keys: Key[] = [];
  /** What the discovery document says of itself, when that is to be wrong. */
  claimedIssuer: string | undefined;
  #server: Server | undefined;
  #port = 0;
  #count = 0;

  static async start(): Promise<TestIssuer> {
    const issuer = new TestIssuer();
    await issuer.addKey();
    await issuer.up();
    return issuer;
  }

  get askedForKeys(): number {
    return this.asked.get('/jwks') ?? 0;
  }

  async addKey(alg = 'ES256'): Promise<Key> {
    const { publicKey, privateKey } = await generateKeyPair(alg, { extractable: true });
    const kid = `key-${++this.#count}`;
    const key = { kid, privateKey, publicJwk: { ...(await exportJWK(publicKey)), kid, alg, use: 'sig' } };
    this.keys.unshift(key);
    return key;
  }

  async up(): Promise<void> {
    const server = createServer((request, response) => {
      const path = request.url ?? '';
      this.asked.set(path, (this.asked.get(path) ?? 0) + 1);
      const documents: Record<string, unknown> = {
        '/.well-known/openid-configuration': {
          issuer: this.claimedIssuer ?? this.url,
          jwks_uri: `${this.url}/jwks`,
        },
        '/jwks': { keys: this.keys.map((key) => key.publicJwk) },
      };
      const document = documents[path];
      response.writeHead(document === undefined ? 404 : 200, { 'content-type': 'application/json' });
      response.end(JSON.stringify(document ?? {}));
    });
    server.listen(this.#port, '127.0.0.1');
    await once(server, 'listening');
    this.#server = server;
    this.#port = (server.address() as { port: number }).port;
    this.url = `http://127.0.0.1:${this.#port}`;
  }

  async down(): Promise<void> {
    const server = this.#server;
    if (server === undefined) return;
    this.#server = undefined;
    server.closeAllConnections();
    server.close();
    await once(server, 'close');
  }

  /** A valid token, except for the given claims. */
  async token(subject: string, options: TokenOptions = {}): Promise<string> {
    const key = options.key ?? this.keys[0];
    assert.ok(key !== undefined);
    const now = Math.floor(Date.now() / 1000);
    const claims = {
      iss: this.url,
      aud: AUDIENCE,
      sub: subject,
      iat: now,
      exp: now + (options.expiresIn ?? 600),
      email: `${subject}@example.org`,
      email_verified: true,
      name: subject,
      ...options.claims,
    };
    return new SignJWT(claims)
      .setProtectedHeader({
        alg: key.publicJwk.alg ?? 'ES256',
        kid: key.kid,
        typ: 'at+jwt',
        ...options.header,
      })
      .sign(key.privateKey);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.down();
  }
}

/** A caller of the management plane. */
export interface Person extends Caller {
  readonly id: string;
  readonly email: string;
}

export interface SignedInWorld extends World {
  issuer: TestIssuer;
  /** Signs a user in, also at first sight. */
  as(subject: string, claims?: Record<string, unknown>): Promise<Person>;
  /** An organization with a project, by its owner. */
  tenant(owner: Person, name?: string): Promise<{ orgId: string; projectId: string; key: Caller }>;
}

export async function startSignedInWorld(
  options: Partial<ControlOptions> = {},
  oidc: Partial<OidcOptions> = {},
): Promise<SignedInWorld> {
  const issuer = await TestIssuer.start();
  endFirst.defer(() => issuer.down());
  const world = await startWorld({
    oidc: { issuer: issuer.url, audience: AUDIENCE, coolDownMs: 200, ...oidc },
    ...options,
  });
  const base = (): string => world.control.url;
  return Object.assign(world, {
    issuer,
    async as(subject: string, claims: Record<string, unknown> = {}): Promise<Person> {
      const call = caller(base, await issuer.token(subject, { claims }), '');
      const me = await call('GET', '/me');
      assert.equal(me.status, 200, me.text);
      return Object.assign(call, { id: String(me.body.id), email: String(me.body.email) });
    },
    async tenant(owner: Person, name = 'acme') {
      const org = await owner('POST', '/orgs', { name });
      const project = await owner('POST', `/orgs/${org.body.id}/projects`, { name: 'main' });
      const key = await owner('POST', `/projects/${project.body.id}/api-keys`);
      assert.equal(key.status, 200, key.text);
      return {
        orgId: String(org.body.id),
        projectId: String(project.body.id),
        key: caller(base, String(key.body.token), String(project.body.id)),
      };
    },
    async [Symbol.asyncDispose]() {
      await world.control.close();
      await issuer.down();
    },
  });
}
