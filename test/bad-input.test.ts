import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { open, rm, statfs } from 'node:fs/promises';
import { type IncomingMessage, request } from 'node:http';
import { tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import { leftovers } from '@releap/testing/leftovers';
import { Service } from '@releap/testing/service';
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

  test('unknown fields are ignored', async () => {
    const { id } = await service.create({ ...SMALL, colour: 'blue', __proto__: { mode: 'turbo' } });
    await service.remove(id);
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
    const { id } = await service.create(SMALL);
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

describe('a full disk', () => {
  /** Free space that a host's disk must have before a sandbox is placed on it. */
  const RESERVE_MIB = 256;
  const ROOM_MIB = 160;
  /** Of the host that tries it, or of the placement, if a heartbeat has said before that nothing is free. */
  const NO_SPACE = /disk below .* is full: \d+ MiB|no space|the most that is free is .* 0 MiB of disk/i;
  let service: Service | undefined;
  const home = join(mkdtempSync(join(tmpdir(), 'releap-full-')), 'home');
  const disk = join(home, 'runner');

  before(async () => {
    mkdirSync(disk, { recursive: true, mode: 0o700 });
    execFileSync('mount', [
      '-t',
      'tmpfs',
      '-o',
      `size=${RESERVE_MIB + ROOM_MIB}m,mode=0700`,
      'releap-test',
      disk,
    ]);
    service = await Service.start({}, home);
  });
  after(async () => {
    try {
      await service?.stop();
    } finally {
      execFileSync('umount', [disk]);
      rmSync(join(home, '..'), { recursive: true, force: true });
    }
  });

  /** Fills the disk but for this much, with a file of another program. */
  async function fill(leaveMib: number): Promise<void> {
    const { bavail, bsize } = await statfs(disk);
    await using file = await open(join(disk, 'other'), 'a');
    try {
      await file.write(Buffer.alloc(bavail * bsize - leaveMib * 2 ** 20));
      // The last bytes, though other processes take some meanwhile.
      if (leaveMib === 0) for (;;) await file.write(Buffer.alloc(4096));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
    }
  }

  test('a create fails with the reason and leaves nothing; with free space again the next one runs', async () => {
    assert.ok(service);
    await fill(RESERVE_MIB - 10);
    const { body } = await service.call<{ vm_id: string }>('POST', '/vms', SMALL);
    const vm = await service.waitFor(body.vm_id, 'failed');
    assert.equal(vm['status'], 'failed', JSON.stringify(vm));
    assert.match(String(vm['error']), NO_SPACE);
    await service.untilNoTraceOf(body.vm_id);
    await rm(join(disk, 'other'));
    await service.remove((await service.create(SMALL)).id);
  });

  test('not one byte free: a running guest blocks on ENOSPC while it writes and loses nothing, a create fails, both can be deleted', async () => {
    assert.ok(service);
    const { id } = await service.create({ ...SMALL, scratch_mib: 128 });
    const { id: gone } = await service.create({ ...SMALL, scratch_mib: 128, persistent: true });
    await fill(0);
    const write = 'dd if=/dev/urandom of=/big bs=1M count=32 conv=fsync 2> /dev/null && wc -c < /big';
    const written = service.exec(id, write);
    const never = service.exec(gone, write).catch(() => undefined);
    await eventually('a guest that is blocked on ENOSPC', async () => {
      assert.ok(service);
      await service.call('POST', `/vms/${gone}/pause`);
      const { body } = await service.call('GET', `/vms/${gone}?wait=running&timeout_ms=60000`);
      return /the sandbox is paused until there is space/.test(String(body['error'])) ? true : undefined;
    });
    // What the host has released meanwhile, such as waiting VMs, would let the next one begin to boot.
    await fill(0);
    const { status, body } = await service.call<{ vm_id: string }>('POST', '/vms', SMALL);
    assert.equal(status, 200);
    const vm = await service.waitFor(body.vm_id, 'failed');
    assert.equal(vm['status'], 'failed', JSON.stringify(vm));
    assert.match(String(vm['error']), NO_SPACE);
    await service.untilNoTraceOf(body.vm_id);
    await service.call('DELETE', `/vms/${gone}`);
    assert.equal((await service.waitFor(gone, 'deleted'))['status'], 'deleted');
    await service.untilNoTraceOf(gone);
    await never;

    await rm(join(disk, 'other'), { force: true });
    const { exitCode, result } = await written;
    assert.equal(exitCode, 0, result);
    assert.equal(result.trim(), String(32 * 2 ** 20));
    await service.remove(id);
  });

  test('the service stops and leaves nothing', async () => {
    assert.ok(service);
    assert.equal(await service.stop(), 0);
    assert.deepEqual(
      (await leftovers(home)).filter((line) => !line.includes(`mount: releap-test ${disk}`)),
      [],
    );
  });
});
