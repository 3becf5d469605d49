/** Certificates of runners, gateways and control servers. */
import assert from 'node:assert/strict';
import { generateKeyPairSync, randomUUID, X509Certificate } from 'node:crypto';
import { after, before, describe, it } from 'node:test';
import { certificateRequest, hostName, parseHostName } from '@releap/certificates/hosts';
import {
  GATEWAY_CERTIFICATE_PATH,
  type HostCertificateResponse,
  RUNNER_HOST_CERTIFICATE_PATH,
} from '@releap/contract';
import {
  credentialOf,
  GATEWAY_TOKEN,
  JOIN_TOKEN,
  OPERATOR_TOKEN,
  postInternal,
} from '@releap/testing/credentials';
import { keyPath, testKeys } from '@releap/testing/keys';
import { lose, type ScriptedRunner, startWorld, type World } from '@releap/testing/world';
import pino from 'pino';
import { createHostAuthority } from '../src/fleet/authority/host-authority.ts';
import { createServiceKeys } from '../src/platform/credentials/service-keys.ts';
import { createEncryption } from '../src/platform/encryption/encryption.ts';

const DAY_MS = 24 * 3_600_000;
const keys = testKeys(keyPath());
let world: World;
let runner: ScriptedRunner;
before(async () => {
  world = await startWorld({ keys, limits: { runnerLostAfterMs: 1_000 } });
  runner = await world.runner();
});
after(async () => world[Symbol.asyncDispose]());

const request = (): string => certificateRequest(generateKeyPairSync('ec', { namedCurve: 'P-256' }));
const forRunner = (token: string) =>
  postInternal(world.internalUrl, RUNNER_HOST_CERTIFICATE_PATH, token, { request: request() });
const forGateway = (token: string, id: string = randomUUID()) =>
  postInternal(world.internalUrl, GATEWAY_CERTIFICATE_PATH, token, { gateway_id: id, request: request() });

async function issued(answer: Promise<Response>): Promise<HostCertificateResponse> {
  const given = await answer;
  assert.equal(given.status, 200, await given.clone().text());
  return (await given.json()) as HostCertificateResponse;
}

describe('certificates of hosts', () => {
  it('name the caller, whatever it asks for, and are valid for a day below one root', async () => {
    const id = randomUUID();
    const [own, gateway] = [
      await issued(forRunner(credentialOf(runner.id))),
      await issued(forGateway(GATEWAY_TOKEN, id)),
    ];
    assert.equal(own.roots, gateway.roots);
    const root = new X509Certificate(own.roots);
    for (const { certificate, not_after } of [own, gateway]) {
      const leaf = new X509Certificate(certificate);
      assert.ok(leaf.verify(root.publicKey));
      assert.equal(leaf.ca, false);
      assert.ok(Date.parse(not_after) - Date.now() <= DAY_MS);
    }
    const nameOf = ({ certificate }: HostCertificateResponse) =>
      parseHostName(new X509Certificate(certificate).subjectAltName);
    assert.deepEqual(nameOf(own), { role: 'runner', id: runner.id });
    assert.deepEqual(nameOf(gateway), { role: 'gateway', id });
    assert.ok(new X509Certificate(own.certificate).checkHost(hostName({ role: 'runner', id: runner.id })));
    // Servers and clients: neither can pose as the other.
    const usages = [own, gateway].map(({ certificate }) => new X509Certificate(certificate).keyUsage);
    assert.deepEqual(usages, [['1.3.6.1.5.5.7.3.1'], ['1.3.6.1.5.5.7.3.2']]);
  });

  it('are issued to no other credential', async () => {
    for (const token of [GATEWAY_TOKEN, JOIN_TOKEN, OPERATOR_TOKEN, credentialOf(randomUUID())])
      assert.equal((await forRunner(token)).status, 401);
    for (const token of [credentialOf(runner.id), JOIN_TOKEN, OPERATOR_TOKEN])
      assert.equal((await forGateway(token)).status, 401);
    assert.equal((await forGateway(GATEWAY_TOKEN, 'x.runner')).status, 400);
    const bad = await postInternal(world.internalUrl, RUNNER_HOST_CERTIFICATE_PATH, credentialOf(runner.id), {
      request: 'AAAA',
    });
    assert.equal(bad.status, 400);
  });

  it('are not issued to a host that was forgotten', async () => {
    const gone = await world.runner();
    await issued(forRunner(credentialOf(gone.id)));
    await lose(world, gone);
    const { status, body } = await world.operator('DELETE', `/operator/hosts/${gone.id}`);
    assert.equal(status, 200, JSON.stringify(body));
    assert.equal((await forRunner(credentialOf(gone.id))).status, 401);
  });

  it('are below a root that is replaced with an overlap: all know the next one before it signs', async () => {
    const encryption = createEncryption(keys);
    const clock = { now: Date.now() };
    const serviceKeys = createServiceKeys({
      database: world.database,
      encryption,
      log: pino({ level: 'silent' }),
    });
    const authority = createHostAuthority({
      serviceKeys,
      label: async () => 'deployment',
      now: () => clock.now,
    });
    const rootsOf = async (): Promise<string[]> =>
      (await authority.issue(request(), { role: 'runner', id: runner.id })).roots.match(
        /-----BEGIN[^-]+-----[^-]+-----END[^-]+-----\n/g,
      ) ?? [];
    const signedBy = async (roots: readonly string[]): Promise<number> => {
      const { certificate } = await authority.issue(request(), { role: 'runner', id: runner.id });
      const leaf = new X509Certificate(certificate);
      return roots.findIndex((root) => leaf.verify(new X509Certificate(root).publicKey));
    };
    const [first] = await rootsOf();
    assert.equal(await authority.renew(), undefined);
    clock.now += 6 * 365 * DAY_MS;
    assert.equal(await authority.renew(), 'announced');
    const both = await rootsOf();
    assert.deepEqual([both.length, both[0]], [2, first]);
    assert.equal(await signedBy(both), 0);
    clock.now += 8 * DAY_MS;
    assert.equal(await authority.renew(), 'replaced');
    assert.equal(await signedBy(both), 1);
    assert.deepEqual(await rootsOf(), both.toReversed());
    clock.now += 3 * DAY_MS;
    assert.deepEqual(await rootsOf(), both.slice(1));
  });
});
