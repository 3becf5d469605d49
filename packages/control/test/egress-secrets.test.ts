/** What runners get to replace placeholders at egress: where secrets go, their values, and certificates. */
import 'reflect-metadata';
import assert from 'node:assert/strict';
import { X509Certificate } from 'node:crypto';
import { describe, it } from 'node:test';
import {
  newUuid,
  RUNNER_CERTIFICATE_PATH,
  RUNNER_SECRETS_PATH,
  tokenDigest,
  type RunnerCertificate,
  type RunnerSecrets,
} from '@releap/contract';
import { createRequest } from '@releap/certificates/x509';
import { constraintsOf } from '../src/fleet/egress/certificates.ts';
import { credentialOf, postInternal } from '@releap/testing/credentials';
import { keyPath, testKeys } from '@releap/testing/keys';
import { create, startWorld, waitFor, type ScriptedRunner } from '@releap/testing/world';
import { pino } from 'pino';
import { createServiceKeys } from '../src/platform/credentials/service-keys.ts';
import { createEgressRoot } from '../src/fleet/egress/egress-root.ts';
import { createEncryption } from '../src/platform/encryption/encryption.ts';
import { secretsOf } from './support/secrets.ts';

const keys = testKeys(keyPath());
const world = await startWorld({ keys });
const runner = await world.runner();

const { put, envOf } = secretsOf(() => world, createEncryption(keys));

async function post<T>(path: string, body: unknown, of: ScriptedRunner = runner): Promise<T> {
  const answer = await postInternal(world.internalUrl, path, credentialOf(of.id), body);
  assert.equal(answer.status, 200, await answer.clone().text());
  return (await answer.json()) as T;
}
const read = (sandboxes: { id: string; revision?: string }[], of?: ScriptedRunner): Promise<RunnerSecrets> =>
  post(RUNNER_SECRETS_PATH, { sandboxes }, of);

async function certificateRequest(namedCurve = 'P-256'): Promise<string> {
  const algorithm = { name: 'ECDSA', namedCurve };
  const pair = await crypto.subtle.generateKey(algorithm, true, ['sign', 'verify']);
  return await createRequest(pair);
}

const assignmentOf = (uuid: string) => runner.assigned(uuid);

describe('assignments', () => {
  it('name the domains of the secrets and the root to trust, and no value; nothing for a sandbox without', async () => {
    await put('A', { value: 'value-of-a', allowed_domains: ['a.example', '*.b.example'] });
    await put('NOWHERE', { value: 'value-of-nowhere' });
    const vm = await create(world.call, world, { secrets: ['A', 'NOWHERE'] });
    const plain = await create(world.call, world, { env: { A: 'x' } });
    const useless = await create(world.call, world, { secrets: ['NOWHERE'] });
    for (const { id } of [vm, plain, useless]) await waitFor(world.call, id, 'running');
    const assigned = await assignmentOf(vm.uuid);
    const { egress_secrets: egress } = assigned.spec;
    assert.deepEqual(egress?.domains, ['*.b.example', 'a.example']);
    assert.equal(new X509Certificate(egress.trust).ca, true);
    assert.ok(!JSON.stringify(assigned).includes('value-of-'));
    for (const { uuid } of [plain, useless]) {
      assert.equal((await assignmentOf(uuid)).spec.egress_secrets, undefined);
    }
  });
});

describe('POST /internal/runners/secrets', () => {
  it('gives the values of the own sandboxes, again only when they change', async () => {
    await put('ROTATED', { value: 'first', allowed_domains: ['a.example'] });
    const vm = await create(world.call, world, { secrets: ['ROTATED'] });
    await waitFor(world.call, vm.id, 'running');
    const first = await read([{ id: vm.uuid }]);
    const [one] = first.sandboxes;
    assert.ok(one);
    const { ROTATED: placeholder = '' } = await envOf(vm.uuid);
    assert.deepEqual(one.secrets, [
      {
        name: 'ROTATED',
        value: 'first',
        allowed_domains: ['a.example'],
        placeholders: [tokenDigest(placeholder).toString('hex')],
      },
    ]);
    const known = [{ id: vm.uuid, revision: one.revision }];
    assert.deepEqual(await read(known), { sandboxes: [], more: false });
    await put('ROTATED', { value: 'second', allowed_domains: ['b.example'] });
    const second = (await read(known)).sandboxes[0]?.secrets[0];
    assert.equal(second?.value, 'second');
    assert.deepEqual(second.allowed_domains, ['b.example']);
    // Over TLS alone, unless a write says otherwise; each write says it anew.
    assert.equal(second.allow_http, undefined);
    await put('ROTATED', { value: 'second', allowed_domains: ['b.example'], allow_http: true });
    assert.equal((await world.call('GET', '/secrets/ROTATED')).body['allow_http'], true);
    assert.equal((await read([{ id: vm.uuid }])).sandboxes[0]?.secrets[0]?.allow_http, true);
    await put('ROTATED', { value: 'second', allowed_domains: ['b.example'] });
    assert.equal((await world.call('GET', '/secrets/ROTATED')).body['allow_http'], undefined);

    await world.call('DELETE', '/secrets/ROTATED');
    assert.equal((await read([{ id: vm.uuid }])).sandboxes[0]?.secrets[0]?.value, 'second');
    await world.call('DELETE', `/vms/${vm.id}`);
    await waitFor(world.call, vm.id, 'deleted');
    assert.deepEqual((await read([{ id: vm.uuid }])).sandboxes[0]?.secrets, []);
  });

  it('bounds an answer, and says that there is more', async () => {
    const value = 'v'.repeat(64 * 1024);
    const names = Array.from({ length: 64 }, (_, index) => `BIG_${index}`);
    for (const name of names) await put(name, { value, allowed_domains: ['a.example'] });
    const vms = [
      await create(world.call, world, { secrets: names }),
      await create(world.call, world, { secrets: names }),
    ];
    for (const { id } of vms) await waitFor(world.call, id, 'running');
    const ids = vms.map(({ uuid }) => ({ id: uuid }));
    const first = await read(ids);
    assert.equal(first.more, true);
    assert.equal(first.sandboxes.length, 1);
    const rest = await read(
      ids.map(({ id }) => ({
        id,
        ...(id === first.sandboxes[0]?.id && { revision: first.sandboxes[0].revision }),
      })),
    );
    assert.equal(rest.more, false);
    assert.equal(rest.sandboxes.length, 1);
  });

  it('another runner, and an unknown sandbox, have none', async () => {
    await put('MINE', { value: 'mine', allowed_domains: ['a.example'] });
    const vm = await create(world.call, world, { secrets: ['MINE'] });
    await waitFor(world.call, vm.id, 'running');
    const [holder, stranger] = await runnerOf(vm.uuid);
    assert.equal((await read([{ id: vm.uuid }], holder)).sandboxes[0]?.secrets.length, 1);
    for (const id of [vm.uuid, newUuid()])
      assert.deepEqual((await read([{ id }], stranger)).sandboxes[0]?.secrets, []);
  });
});

describe('POST /internal/runners/egress-certificate', () => {
  it('is for the domains of the secrets of the sandboxes of that runner alone, and for a day', async () => {
    const issue = async (of?: Parameters<typeof post>[2]): Promise<{ names: string; hours: number }> => {
      const body = { request: await certificateRequest() };
      const { certificate, not_after: end } = await post<RunnerCertificate>(
        RUNNER_CERTIFICATE_PATH,
        body,
        of,
      );
      const names = new X509Certificate(certificate).raw.toString('latin1');
      return { names, hours: (Date.parse(end) - Date.now()) / 3_600_000 };
    };
    await put('BOUND', { value: 'bound', allowed_domains: ['only.here.example', '*.wild.example'] });
    const vm = await create(world.call, world, { secrets: ['BOUND'] });
    await waitFor(world.call, vm.id, 'running');
    const [holder, stranger] = await runnerOf(vm.uuid);
    const own = await issue(holder);
    for (const name of ['only.here.example', 'wild.example']) assert.ok(own.names.includes(name), name);
    assert.ok(own.hours <= 24);
    assert.ok(!(await issue(stranger)).names.includes('only.here.example'));
    await world.call('DELETE', `/vms/${vm.id}`);
    await waitFor(world.call, vm.id, 'deleted');
    assert.ok(!(await issue(holder)).names.includes('only.here.example'));
  });

  it('names fewer domains that contain them when there are very many', () => {
    assert.deepEqual(constraintsOf(['b.example', '*.b.example', 'a.b.example', 'other.org']), [
      'b.example',
      'other.org',
    ]);
    const many = Array.from({ length: 2_000 }, (_, index) => `h${index}.t${index % 3}.example.com`);
    const few = constraintsOf(many);
    assert.ok(few.length <= 500 && few.length > 0);
    for (const name of many) assert.ok(few.some((one) => name.endsWith(`.${one}`)));
  });

  it('issues an intermediate below one root, which is stored encrypted', async () => {
    const issued = await Promise.all(
      [runner, await world.runner()].map(async (of) =>
        post<RunnerCertificate>(RUNNER_CERTIFICATE_PATH, { request: await certificateRequest() }, of),
      ),
    );
    const [a, b] = issued;
    assert.ok(a && b);
    assert.equal(a.root, b.root);
    const root = new X509Certificate(a.root);
    assert.ok(root.verify(root.publicKey));
    for (const { certificate, not_after: notAfter } of issued) {
      const intermediate = new X509Certificate(certificate);
      assert.ok(intermediate.verify(root.publicKey));
      assert.equal(intermediate.ca, true);
      assert.ok(Date.parse(notAfter) < Date.parse(root.validTo));
    }
    assert.match(new X509Certificate(a.certificate).subject, new RegExp(runner.id));
    const { rows } = await world.database.pool.query<{ key_id: string | null; envelope: Buffer }>(
      `select key_id, envelope from service_keys where name = 'egress-root'`,
    );
    assert.equal(rows.length, 1);
    assert.ok(rows[0]?.key_id);
    assert.ok(!rows[0].envelope.includes('CERTIFICATE'));
  });

  it('is replaced with an overlap: guests trust the next root before it signs, and the previous one for a while', async () => {
    const year = 365 * 24 * 3_600_000;
    const day = year / 365;
    const encryption = createEncryption(keys);
    const clock = { now: Date.now() };
    const options = { database: world.database, encryption, log: pino({ level: 'silent' }) };
    // As two control servers.
    const [one, other] = [createServiceKeys(options), createServiceKeys(options)].map((serviceKeys) =>
      createEgressRoot({ serviceKeys, label: async () => 'deployment', now: () => clock.now }),
    );
    assert.ok(one && other);
    const trusted = async (): Promise<string[]> =>
      (await one.certificate()).match(/-----BEGIN[^-]+-----[^-]+-----END[^-]+-----\n/g) ?? [];
    const signer = async (): Promise<string> =>
      (await one.issue(await certificateRequest(), runner.id, [])).root;
    const [first, ...none] = await trusted();
    assert.deepEqual(none, []);
    assert.equal(await one.renew(), undefined);
    clock.now += 6 * year;
    const renewed = await Promise.all([one.renew(), other.renew()]);
    assert.deepEqual(
      renewed.filter((step) => step !== undefined),
      ['announced'],
      'one of them',
    );
    const [current, next, ...more] = await trusted();
    assert.deepEqual([current, more], [first, []]);
    assert.equal(await signer(), first);
    assert.equal(await one.renew(), undefined);
    clock.now += 200 * day;
    assert.equal(await one.renew(), 'replaced');
    assert.deepEqual(await trusted(), [next, first]);
    assert.equal(await signer(), next);
    const issued = await one.issue(await certificateRequest(), runner.id, []);
    assert.ok(new X509Certificate(issued.certificate).verify(new X509Certificate(next ?? '').publicKey));
    clock.now += 9 * day;
    assert.deepEqual(await trusted(), [next]);
  });

  it('refuses a request that its key has not signed, and other kinds of keys', async () => {
    const request = Buffer.from(await certificateRequest(), 'base64');
    request.writeUInt8(request.readUInt8(request.length - 1) ^ 1, request.length - 1);
    for (const bad of [request.toString('base64'), await certificateRequest('P-384'), 'AAAA']) {
      const answer = await postInternal(world.internalUrl, RUNNER_CERTIFICATE_PATH, credentialOf(runner.id), {
        request: bad,
      });
      assert.equal(answer.status, 400, await answer.text());
    }
  });
});

const others: ScriptedRunner[] = [];
/** The runner that has this sandbox, and another. */
async function runnerOf(uuid: string): Promise<[ScriptedRunner, ScriptedRunner]> {
  if (others.length === 0) others.push(await world.runner());
  const { rows } = await world.database.pool.query<{ runner_id: string }>(
    'select runner_id from sandboxes where id = $1',
    [uuid],
  );
  const all = [runner, ...others];
  const holder = all.find(({ id }) => id === rows[0]?.runner_id) ?? assert.fail('another runner has it');
  return [holder, all.find((one) => one !== holder) ?? assert.fail()];
}
