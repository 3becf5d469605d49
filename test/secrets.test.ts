import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { X509Certificate } from 'node:crypto';
import { mkdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { filesWith } from '@releap/testing/find-text';
import { temporaryFolder, writeOciLayout } from '@releap/testing/oci';
import { REGISTRY_USER, startRegistry, type TestRegistry } from '@releap/testing/registry';
import { appImage } from './support/app-image.ts';
import { eventually } from '@releap/testing/eventually';
import { leftovers } from '@releap/testing/leftovers';
import { makeImagelessCache, REPO, Service } from '@releap/testing/service';

const SMALL = { cpu: 1, mem_mib: 256, scratch_mib: 64 };
const SECRET = '4d7a-value-that-nobody-sees-c1f0';
const WRONG = '9b3e-a-password-that-is-wrong-77ad';

describe('secrets and a registry that wants a password', () => {
  let service: Service;
  let registry: TestRegistry;
  let folder: Awaited<ReturnType<typeof temporaryFolder>>;
  let digest: string;

  before(async () => {
    folder = await temporaryFolder();
    const store = join(folder.path, 'registry');
    await mkdir(store);
    registry = await startRegistry(store, true);
    const layout = join(folder.path, 'app');
    digest = await writeOciLayout(layout, await appImage(), {
      config: { Entrypoint: ['/bin/sh', '-c', 'echo "token: $TOKEN"; while :; do sleep 1; done'] },
    });
    registry.push(layout, 'private/app:1');
    // A cache of its own: everything here is pulled, not found.
    service = await Service.start({ RELEAP_CACHE: await makeImagelessCache(join(folder.path, 'cache')) });
  });

  after(async () => {
    await service?.[Symbol.asyncDispose]();
    await registry?.[Symbol.asyncDispose]();
    await folder?.[Symbol.asyncDispose]();
  });

  const credential = (password: string) =>
    service.call('PUT', `/registries/${registry.host}`, { username: REGISTRY_USER.username, password });

  async function failure(): Promise<string> {
    const image = `${registry.host}/private/app:1`;
    const { body } = await service.call<{ vm_id: string }>('POST', '/vms', { ...SMALL, image });
    const vm = await service.waitFor(body.vm_id, 'failed');
    assert.equal(vm['status'], 'failed', JSON.stringify(vm));
    return String(vm['error']);
  }

  test('without a credential a pull fails, and says that one is wanted', async () => {
    assert.match(await failure(), /wants authentication for localhost:\d+\/private\/app:1/);
  });

  test('with a wrong password it fails, says so, and does not say the password', async () => {
    assert.equal((await credential(WRONG)).status, 204);
    const error = await failure();
    assert.match(error, /does not accept the project's credential for localhost:\d+\/private\/app:1/);
    assert.ok(!error.includes(WRONG));
    const image = { name: 'refused', source: `${registry.host}/private/app:1` };
    const { body } = await service.call<{ job_id: string }>('POST', '/images', image);
    const job = await eventually('the end of the build', async () => {
      const answer = await service.call('GET', `/jobs/${body.job_id}`);
      return answer.body['status'] === 'failed' ? answer.body : undefined;
    });
    assert.match(String(job['error']), /does not accept the project's credential/);
  });

  test('with the right one the image is built and runs; inside, a secret is a placeholder that stays', async () => {
    assert.equal((await credential(REGISTRY_USER.password)).status, 204);
    assert.equal(
      (await service.call('PUT', '/secrets/TOKEN', { value: SECRET, allowed_domains: ['a.example'] })).status,
      204,
    );
    const { id } = await service.create({
      ...SMALL,
      image: `${registry.host}/private/app:1`,
      persistent: true,
      secrets: ['TOKEN'],
    });
    assert.equal((await service.call('GET', `/vms/${id}`)).body['manifest_name'], digest);
    const inside = async (): Promise<string> => (await service.exec(id, 'echo "$TOKEN"')).result.trim();
    const placeholder = await inside();
    assert.match(placeholder, /^rlps_[0-9A-Za-z]{43}$/);
    const trusted = async (vmId: string): Promise<string> =>
      (await service.exec(vmId, 'cat "$SSL_CERT_FILE"')).result;
    const root = await trusted(id);
    assert.match(new X509Certificate(root).subject, /^O=Releap\nCN=Releap egress root [0-9a-f]{8}$/);
    await service.call('POST', `/vms/${id}/stop`);
    assert.equal((await service.waitFor(id, 'stopped'))['status'], 'stopped');
    await service.call('POST', `/vms/${id}/start`);
    await service.waitFor(id, 'running');
    assert.equal(await inside(), placeholder);
    await eventually('what its entrypoint says', async () => {
      const log = await service.call<string>('GET', `/vms/${id}/entrypoint-logs`);
      assert.match(log.body, new RegExp(`token: ${placeholder}`));
      return true;
    });

    const { body } = await service.call<{ vm_id: string }>('POST', `/vms/${id}/fork`);
    await service.waitFor(body.vm_id, 'running');
    const child = (await service.exec(body.vm_id, 'echo "$TOKEN"')).result.trim();
    assert.match(child, /^rlps_[0-9A-Za-z]{43}$/);
    assert.notEqual(child, placeholder);
    assert.equal(await inside(), placeholder);
    assert.equal(await trusted(body.vm_id), root);
    // A process of its own gets the value, beside the control plane.
    const record = join(service.home, 'runner/network/intercept/intercept.json');
    await eventually('the interceptor runs', () => readFile(record, 'utf8'));
  });

  test('releap rotate-key adds a key; promoted, the server uses it and rewraps what the old one has wrapped', async () => {
    const main = join(REPO, 'packages/server/src/main.ts');
    const rotateKey = (...args: string[]): string =>
      execFileSync(process.execPath, [main, 'rotate-key', ...args], {
        env: { ...process.env, RELEAP_HOME: service.home },
        encoding: 'utf8',
      });
    const said = rotateKey() + rotateKey('--promote');
    const id = /^added key (\S+) to /.exec(said)?.[1] ?? '';
    const { keys } = JSON.parse(await readFile(join(service.home, 'keys.json'), 'utf8')) as {
      keys: { id: string; key: string }[];
    };
    assert.deepEqual([keys.length, keys.at(-1)?.id], [2, id]);
    assert.ok(keys.every(({ key }) => !said.includes(key)));
    const line = await eventually('the rotation', async () =>
      (await readFile(join(service.home, 'log', 'control.log'), 'utf8'))
        .split('\n')
        .find((text) => text.includes('rewrapped with the current key')),
    );
    // The secret, the registry's password, and the deployment's keys: for data tokens, and of the root that guests trust.
    assert.match(line, new RegExp(`"done":4,"failed":0,"key":"${id}"`));
  });

  test('neither is in any file of the service, of its cache, or in what it says', async () => {
    const keys = join(service.home, 'keys.json');
    assert.equal((await stat(keys)).mode & 0o777, 0o600);
    assert.equal((JSON.parse(await readFile(keys, 'utf8')) as { keys: unknown[] }).keys.length, 2);
    const basic = (password: string): string =>
      Buffer.from(`${REGISTRY_USER.username}:${password}`).toString('base64');
    const quoted = JSON.stringify(REGISTRY_USER.password).slice(1, -1);
    const hidden = [
      SECRET,
      WRONG,
      REGISTRY_USER.password,
      quoted,
      basic(WRONG),
      basic(REGISTRY_USER.password),
    ];
    // The search works: what is there is found, in the database too.
    assert.ok(filesWith(join(service.home, 'postgres'), registry.host).length > 0);
    assert.deepEqual(filesWith(service.home, ...hidden), []);
    assert.deepEqual(filesWith(join(folder.path, 'cache'), ...hidden), []);
    assert.ok(!hidden.some((text) => service.output.includes(text)));
  });

  test('the service stops and leaves nothing', async () => {
    assert.equal(await service.stop(), 0);
    assert.deepEqual(await leftovers(service.home), []);
  });
});
