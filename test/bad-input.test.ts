import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { totalmem } from 'node:os';
import { after, before, describe, test } from 'node:test';
import { leftovers } from '@releap/testing/leftovers';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';

const SMALL = { image: 'busybox', cpu: 1, mem_mib: 256, scratch_mib: 64 };
const UUID = '0192f0c1-2345-7abc-8def-0123456789ab';

describe('bad input to a live service', () => {
  let service: Service;
  before(async () => {
    service = await sharedService();
  });
  after(async () => {
    await service?.[Symbol.asyncDispose]();
  });

  async function refused(status: number, method: string, path: string, body?: unknown): Promise<string> {
    const answer = await service.call<{ error: string }>(method, path, body);
    assert.equal(
      answer.status,
      status,
      `${method} ${path} ${JSON.stringify(body)}: ${JSON.stringify(answer.body)}`,
    );
    assert.equal(typeof answer.body.error, 'string');
    return answer.body.error;
  }

  async function raw(
    body: string | Buffer,
    headers: Record<string, string> = {},
  ): Promise<{ status: number; error: string }> {
    const answer = await fetch(`${service.bootstrap.base_url}/vms`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${service.bootstrap.api_key}`,
        'content-type': 'application/json',
        ...headers,
      },
      body,
    });
    const { error } = (await answer.json()) as { error: string };
    assert.equal(typeof error, 'string');
    return { status: answer.status, error };
  }

  /** A create that is accepted and fails: returns the reason. */
  async function failure(request: Record<string, unknown>): Promise<string> {
    const made = await service.call<{ vm_id: string; job_id: string }>('POST', '/vms', {
      ...SMALL,
      ...request,
    });
    assert.equal(made.status, 200, JSON.stringify(made.body));
    const body = await service.waitFor(made.body.vm_id, 'failed');
    assert.equal(body['status'], 'failed', JSON.stringify(body));
    const job = await service.call('GET', `/jobs/${made.body.job_id}`);
    assert.equal(job.body['status'], 'failed');
    assert.equal(job.body['error'], body['error']);
    await service.untilNoTraceOf(made.body.vm_id);
    await service.remove(made.body.vm_id);
    return String(body['error']);
  }

  test('bodies of the wrong form', async () => {
    for (const text of ['', '{', '[]', '"busybox"', 'null', '{"image":"busybox"', '\0']) {
      const { status, error } = await raw(text);
      assert.equal(status, 400, `${JSON.stringify(text)}: ${error}`);
    }
    const type = await raw('image=busybox', { 'content-type': 'application/x-www-form-urlencoded' });
    assert.ok([400, 415].includes(type.status), `${type.status} ${type.error}`);
    // Refused because of its headers: a response in the middle of a body is often lost.
    const large = request(`${service.bootstrap.base_url}/vms`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${service.bootstrap.api_key}`,
        'content-type': 'application/json',
        'content-length': 20 * 1024 * 1024,
      },
    });
    large.on('error', () => undefined).flushHeaders();
    const [answer] = (await once(large, 'response')) as [IncomingMessage];
    assert.equal(answer.statusCode, 400);
    large.destroy();
  });

  test('fields of the wrong type, out of range or not available name the field', async () => {
    const wrong: [Record<string, unknown>, RegExp][] = [
      [{ image: undefined }, /image/],
      [{ image: 7 }, /image/],
      [{ image: '' }, /image/],
      [{ image: { type: 'floppy' } }, /type.*floppy/],
      [{ image: 'UPPER/case:1' }, /image/],
      [{ mode: 'turbo' }, /mode/],
      [{ cpu: 0 }, /cpu/],
      [{ cpu: -1 }, /cpu/],
      [{ cpu: '1' }, /cpu/],
      [{ cpu: 17, mode: 'dedicated' }, /cpu.*17.*16/],
      [{ cpu: 1000 }, /cpu.*1000/],
      [{ mem_mib: 0 }, /mem_mib/],
      [{ mem_mib: 1.5 }, /mem_mib/],
      [{ mem_mib: 10_000_000 }, /mem_mib.*10000000/],
      [{ scratch_mib: -5 }, /scratch_mib/],
      [{ ports: [{ vm_port: 70_000 }] }, /ports.*vm_port/],
      [{ ports: [{ vm_port: 80, proto: 'sctp' }] }, /ports.*proto/],
      [{ ports: 80 }, /ports/],
      [{ env: { '1BAD': 'x' } }, /1BAD/],
      [{ env: { BIG: 'x'.repeat(65 * 1024) } }, /BIG/],
      [{ env: { A: 1 } }, /env/],
      [{ name: 'a\0b' }, /name/],
      [{ region: 'atlantis' }, /atlantis/],
      [{ cpu_arch: 'mips' }, /cpu_arch/],
      [{ cpu_type: 'quantum' }, /cpu_type/],
      [{ egress_policy: { enabled: true, allow: ['300.1.2.3'] } }, /allow/],
      [{ egress_policy: { enabled: 'yes' } }, /enabled/],
      [{ volumes: [{ volume: 'data', mount_path: '/proc' }] }, /\/proc/],
      [{ object_store_mounts: [{ object_store: 's', mount_path: '/proc' }] }, /\/proc/],
      [{ image: { type: 'dockerfile', dockerfile: '' } }, /dockerfile/],
      [{ image: { type: 'dockerfile', dockerfile: 7 } }, /dockerfile/],
      [{ image: { type: 'dockerfile', path: 'Dockerfile' } }, /dockerfile/],
    ];
    for (const [change, names] of wrong) {
      assert.match(await refused(400, 'POST', '/vms', { ...SMALL, ...change }), names);
    }
    const { body } = await service.call<{ vms: unknown[] }>('GET', '/vms');
    assert.deepEqual(body.vms, []);
  });

  test('unknown names and ids', async () => {
    assert.match(await refused(404, 'POST', '/vms', { ...SMALL, image: 'no-such-image' }), /no-such-image/);
    const mounts = [{ object_store: 'no-such-store', mount_path: '/s' }];
    assert.match(
      await refused(404, 'POST', '/vms', { ...SMALL, object_store_mounts: mounts }),
      /no-such-store/,
    );
    const volumes = [{ volume: 'no-such-volume', mount_path: '/v' }];
    assert.match(await refused(404, 'POST', '/vms', { ...SMALL, volumes }), /no-such-volume/);
    for (const id of [UUID, `local-${'a'.repeat(26)}`, 'local-x', '..%2f..', '%00', 'a'.repeat(400)]) {
      await refused(404, 'GET', `/vms/${id}`);
      await refused(404, 'DELETE', `/vms/${id}`);
      await refused(404, 'GET', `/vms/${id}/logs`);
    }
    await refused(404, 'GET', `/jobs/${UUID}`);
    await refused(404, 'GET', '/jobs/zzz');
    await refused(400, 'GET', '/vms?cursor=nonsense');
    await refused(404, 'GET', '/no/such/route');
    await refused(400, 'POST', '/images', { name: 'x' });
    await refused(400, 'POST', '/images', { name: '../x', source: 'busybox:1' });
    await refused(400, 'POST', '/images', { name: 'x', source: { type: 'registry', ref: 'a b' } });
  });

  test('invalid credentials', async () => {
    for (const key of ['', 'rlp_', 'rlp_nothing', 'rlpv_nothing', `${service.bootstrap.api_key}x`]) {
      const { status } = await service.call('GET', '/vms', undefined, key);
      assert.equal(status, 401, key);
    }
    assert.equal((await fetch(`${service.bootstrap.base_url}/vms`)).status, 401);
  });

  let id: string;
  test('unknown fields are ignored', async () => {
    ({ id } = await service.create({ ...SMALL, colour: 'blue', __proto__: { mode: 'turbo' } }));
  });

  test('a sandbox that fits no machine here fails with what is lacking', async () => {
    assert.match(await failure({ cpu_arch: 'arm64' }), /architecture arm64.*amd64/);
    assert.match(await failure({ gpu_host: 1 }), /1 GPU/);
    const host = Math.floor(totalmem() / 2 ** 20);
    assert.match(
      await failure({ mode: 'dedicated', mem_mib: host * 2 }),
      new RegExp(`large enough.*${host * 2} MiB.*\\d+ MiB of memory`),
    );
    assert.match(
      await failure({ mode: 'dedicated', scratch_mib: 500_000_000 }),
      /large enough.*500000000 MiB of disk/,
    );
  });

  test('the toolbox: impossible commands and paths', async () => {
    const base = `${await service.toolboxUrl()}/${id}`;
    const ask = async (path: string, init: RequestInit = {}): Promise<number> => {
      const answer = await fetch(`${base}/${path}`, {
        ...init,
        headers: { authorization: `Bearer ${service.bootstrap.api_key}`, 'content-type': 'application/json' },
      });
      const { error } = (await answer.json()) as { error?: unknown };
      assert.equal(typeof error, 'string', path);
      return answer.status;
    };
    const post = (body: string): Promise<number> => ask('process/execute', { method: 'POST', body });
    assert.equal(await post('{'), 400);
    assert.equal(await post('{}'), 400);
    assert.equal(await post('{"command":7}'), 400);
    assert.equal(await post('{"command":"true","timeout":-1}'), 400);
    assert.equal(await post('{"command":"true","env":{"=":"x"}}'), 400);
    assert.equal(await ask('files/download'), 400);
    assert.equal(await ask('files/download?path=/no/such/file'), 404);
    assert.ok([400, 404, 409].includes(await ask('files/download?path=/etc')));
    assert.equal(await ask('no/such/thing'), 404);
    assert.ok((await service.exec(id, 'no-such-program')).exitCode === 127);
    await service.remove(id);
  });

  test('leaves nothing', async (t) => {
    if (service.shared) return t.skip('asserted when the run stops the service that files share');
    assert.equal(await service.stop(), 0);
    assert.deepEqual(await leftovers(service.home), []);
  });
});
