import assert from 'node:assert/strict';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import type {
  SandboxRecord,
  SandboxUsage,
  SnapshotKind,
  SnapshotRecord,
  UsageHistory,
} from '@releap/contract';
import { eventually } from '@releap/testing/eventually';
import { COUNTER, COUNTS } from '@releap/testing/guest-programs';
import { leftovers } from '@releap/testing/leftovers';
import { partPids, type Role } from '@releap/testing/processes';
import { isNightly } from '@releap/testing/repetitions';
import { Service, uuidOf } from '@releap/testing/service';

const SMALL = { image: 'busybox', cpu: 0.25, mem_mib: 256, scratch_mib: 64 };
const PATIENCE_MS = 180_000;
const FILL = `mkdir -p /data; dd if=/dev/urandom of=/data/file bs=1M count=1 2> /dev/null; cd /; sha256sum data/file > /sum
  dd if=/dev/urandom of=/dev/shm/m bs=1M count=1 2> /dev/null; sha256sum dev/shm/m > /dev/shm/sum
  ${COUNTER}`;

/** Statuses of sandboxes that have a folder on their host. */
const HELD = new Set(['running', 'paused', 'stopped']);
const OVER = new Set(['failed', 'deleted']);

describe('forks and snapshots, through the API', () => {
  let service: Service;
  /** A failpoint's name as a file in here makes the runner kill itself there. */
  let crashes: string;
  let source: string;
  let ephemeral: string;
  /** Every job that was acknowledged. */
  const jobs: string[] = [];

  before(async () => {
    crashes = await temporaryFolder('releap-la-');
    service = await Service.start({
      RELEAP_CRASH_AT: crashes,
      RELEAP_CORES: '8',
      RELEAP_MEMORY_MIB: '16384',
    });
    source = (await service.create({ ...SMALL, name: 'source', persistent: true })).id;
    ephemeral = (await service.create({ ...SMALL, name: 'ephemeral' })).id;
    for (const id of [source, ephemeral]) await run(id, FILL);
  });
  after(async () => {
    await service?.[Symbol.asyncDispose]();
    await rm(crashes, { recursive: true, force: true });
  });

  async function post<T extends object>(path: string, body?: unknown): Promise<T> {
    const answer = await service.call<T & { job_id?: string; error?: string }>('POST', path, body);
    assert.equal(answer.status, 200, `${path}: ${JSON.stringify(answer.body)}`);
    if (answer.body.job_id !== undefined) jobs.push(answer.body.job_id);
    return answer.body;
  }

  /** Like `call`, through restarts of the process that answers. */
  async function get<T>(path: string): Promise<T> {
    return await eventually(path, async () => {
      const { status, body } = await service.call<T>('GET', path);
      if (status === 200) return body;
      throw new Error(`${path} answered ${status}: ${JSON.stringify(body)}`);
    });
  }

  async function reaches(id: string, status: string): Promise<SandboxRecord> {
    return await eventually(
      `${id} is ${status}`,
      async () => {
        const record = await get<SandboxRecord>(`/vms/${id}?wait_exact=${status}&timeout_ms=5000`);
        if (record.status === status) return record;
        throw new Error(`it is ${record.status}: ${record.error}`);
      },
      PATIENCE_MS,
    );
  }

  async function run(id: string, command: string): Promise<string> {
    const { exitCode, result } = await eventually('exec', () => service.exec(id, command));
    assert.equal(exitCode, 0, result);
    return result;
  }

  /** All of its data is there; with its memory and its process, if it has kept them. */
  async function isWhole(id: string, hasMemory: boolean): Promise<void> {
    const sums = hasMemory ? '/sum /dev/shm/sum' : '/sum';
    assert.match(await run(id, `cd /; sha256sum -c ${sums}`), hasMemory ? /file: OK\n.*m: OK/ : /file: OK/);
    if (!hasMemory) return;
    await run(id, COUNTS);
  }

  async function fork(of: string, name?: string): Promise<string> {
    return (await post<{ vm_id: string }>(`/vms/${of}/fork`, name === undefined ? undefined : { name }))
      .vm_id;
  }

  async function snapshot(of: string, name: string, kind: SnapshotKind): Promise<string> {
    return (await post<SnapshotRecord>(`/vms/${of}/snapshots`, { name, kind })).id;
  }

  async function ready(id: string): Promise<SnapshotRecord> {
    return await eventually(
      `snapshot ${id} is ready`,
      async () => {
        const record = await get<SnapshotRecord>(`/snapshots/${id}?wait=ready&timeout_ms=5000`);
        if (record.status === 'ready') return record;
        throw new Error(`it is ${record.status}: ${record.error}`);
      },
      PATIENCE_MS,
    );
  }

  async function restored(name: string, more: Record<string, unknown> = {}): Promise<string> {
    return (await post<{ vm_id: string }>('/vms', { image: { type: 'snapshot', name }, ...more })).vm_id;
  }

  async function deleteSnapshot(id: string): Promise<number> {
    return (await service.call('DELETE', `/snapshots/${id}`)).status;
  }

  /** What control reports and what the host has are the same, all jobs have ended, and no resource is without an owner. */
  async function agree(): Promise<void> {
    await eventually(
      'control and host agree',
      async () => {
        const { vms } = await get<{ vms: SandboxRecord[] }>('/vms?limit=100');
        const moving = vms.filter(({ status }) => !HELD.has(status) && !OVER.has(status));
        assert.deepEqual(
          moving.map(({ id, status }) => `${id} ${status}`),
          [],
        );
        const held = vms.filter(({ status }) => HELD.has(status)).map(({ id }) => uuidOf(id));
        assert.deepEqual((await readdir(join(service.home, 'runner/vms'))).sort(), held.sort());
        const { snapshots } = await get<{ snapshots: SnapshotRecord[] }>('/snapshots?limit=100');
        const folders = await readdir(join(service.home, 'runner/snapshots')).catch(() => [] as string[]);
        const kept = snapshots.filter(({ status }) => status === 'ready').map(({ id }) => id);
        assert.deepEqual(folders.sort(), kept.sort());
        for (const job of jobs) {
          const { status } = await get<{ status: string }>(`/jobs/${job}`);
          assert.ok(['done', 'failed'].includes(status), `job ${job} is ${status}`);
        }
        return true;
      },
      PATIENCE_MS,
    );
  }

  async function hosts<T extends object>(method: 'GET' | 'POST', path: string, body?: unknown): Promise<T> {
    const token = (await readFile(join(service.home, 'operator.token'), 'utf8')).trim();
    const answer = await fetch(`${service.bootstrap.internal_url}/operator/hosts${path}`, {
      method,
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    assert.equal(answer.status, 200, text);
    return JSON.parse(text) as T;
  }

  test('a fork of a running sandbox runs, says whose it is, and can be forked itself', async () => {
    const child = await fork(source);
    const record = await reaches(child, 'running');
    assert.equal(record.forked_from, source);
    assert.equal(record.name, 'source-fork');
    const grandchild = await fork(child, 'grandchild');
    assert.equal((await reaches(grandchild, 'running')).forked_from, child);
    for (const id of [source, child, grandchild]) await isWhole(id, true);
    await run(child, 'echo mine > /data/file');
    await service.remove(child);
    for (const id of [source, grandchild]) await isWhole(id, true);
    await service.remove(grandchild);
    await agree();
  });

  test('a fork of a paused sandbox is paused, and both can be resumed', async () => {
    await post(`/vms/${source}/pause`);
    await reaches(source, 'paused');
    const child = await fork(source, 'paused-child');
    await reaches(child, 'paused');
    for (const id of [source, child]) await post(`/vms/${id}/resume`);
    for (const id of [source, child]) {
      await reaches(id, 'running');
      await isWhole(id, true);
    }
    await service.remove(child);
    await agree();
  });

  test('snapshots of the disk make a chain: the older ones stay as long as the newer ones', async () => {
    const first = await ready(await snapshot(ephemeral, 'one', 'disk'));
    await run(ephemeral, 'echo two > /data/two');
    const second = await ready(await snapshot(ephemeral, 'two', 'disk'));
    assert.equal(second.parent_id, first.id);
    assert.equal(await deleteSnapshot(first.id), 409);
    const [old, young] = [await restored('one'), await restored('two', { persistent: true })];
    for (const id of [old, young]) {
      await reaches(id, 'running');
      await isWhole(id, false);
    }
    assert.equal(await run(old, 'ls /data'), 'file\n');
    assert.equal(await run(young, 'cat /data/two'), 'two\n');
    assert.equal(await deleteSnapshot(second.id), 200);
    assert.equal(await deleteSnapshot(first.id), 200);
    for (const id of [old, young]) {
      await isWhole(id, false);
      await service.remove(id);
    }
    await agree();
  });

  test('a full snapshot can be resumed any number of times', async () => {
    const { id, artifact_ref } = await ready(await snapshot(source, 'full', 'full'));
    assert.ok(artifact_ref);
    for (const turn of [1, 2]) {
      const again = await restored('full', { name: `again-${turn}` });
      await reaches(again, 'running');
      await isWhole(again, true);
      await service.remove(again);
    }
    assert.equal(await deleteSnapshot(id), 200);
    await agree();
  });

  async function crashRunnerAt(point: string, begin: () => Promise<string>): Promise<string> {
    const { runner } = await partPids(service.home);
    await writeFile(join(crashes, point), '');
    const id = await begin();
    await service.untilRestarted('runner', runner);
    return id;
  }

  for (const point of isNightly() ? ['fork:taken', 'fork:loaded'] : ['fork:loaded']) {
    test(`kill -9 of the runner at ${point}: the fork runs in the end, and its source continues`, async () => {
      const child = await crashRunnerAt(point, () => fork(source, 'crashed'));
      await reaches(child, 'running');
      for (const id of [source, child]) await isWhole(id, true);
      await service.remove(child);
      await agree();
    });
  }

  test('kill -9 of the runner at snapshot:taken, then at restore:copied: all of it ends', async () => {
    const id = await crashRunnerAt('snapshot:taken', () => snapshot(source, 'crashed', 'full'));
    await ready(id);
    await isWhole(source, true);
    const child = await crashRunnerAt('restore:copied', () => restored('crashed', { name: 'crashed' }));
    assert.ok((await reaches(child, 'running')).manifest_name);
    await isWhole(child, true);
    await service.remove(child);
    assert.equal(await deleteSnapshot(id), 200);
    await agree();
  });

  for (const role of ['control', 'postgres'] satisfies Role[]) {
    for (const delayMs of isNightly() ? [0, 300] : [300]) {
      test(`kill -9 of ${role}, ${delayMs} ms into a fork and a snapshot: both end`, async () => {
        const child = await fork(source, 'crashed');
        await sleep(delayMs);
        await service.kill9(role);
        await reaches(child, 'running');
        await isWhole(child, true);
        const id = await snapshot(ephemeral, 'crashed', 'disk');
        await sleep(delayMs);
        await service.kill9(role);
        await ready(id);
        for (const one of [source, ephemeral]) await isWhole(one, true);
        await service.remove(child);
        assert.equal(await deleteSnapshot(id), 200);
        await agree();
      });
    }
  }

  test('kill -9 of the VMM of a source in the middle of its fork: both end, nothing is left', async () => {
    const victim = await fork(source, 'victim');
    await reaches(victim, 'running');
    const vmm = await service.vmm(victim);
    const child = await fork(victim, 'child-of-victim');
    process.kill(vmm, 'SIGKILL');
    await reaches(victim, 'failed');
    const end = await eventually('the child has ended', async () => {
      const { status } = await get<SandboxRecord>(`/vms/${child}?wait=running&timeout_ms=5000`);
      return ['running', 'paused', 'failed'].includes(status) ? status : undefined;
    });
    if (end === 'running') await isWhole(child, true);
    for (const id of [child, victim]) await service.remove(id);
    await agree();
  });

  test('a spot sandbox is evicted: paused if it is persistent, deleted if not', async () => {
    const { hosts: all } = await hosts<{ hosts: { id: string }[] }>('GET', '');
    const spot = { ...SMALL, spot: true };
    const kept = (await service.create({ ...spot, name: 'kept', persistent: true })).id;
    const gone = (await service.create({ ...spot, name: 'gone' })).id;
    const answer = await hosts<{ evicted: unknown[] }>('POST', `/${all[0]?.id}/evict`);
    assert.equal(answer.evicted.length, 2);
    assert.ok((await reaches(kept, 'paused')).spot_evicted_at);
    await reaches(gone, 'deleted');
    await service.remove(kept);
    await agree();
  });

  test('a drained host pauses what is persistent and takes nothing new, until it is back', async () => {
    const { hosts: all } = await hosts<{ hosts: { id: string }[] }>('GET', '');
    const host = `/${all[0]?.id}`;
    const { remaining } = await hosts<{ remaining: { vm_id: string }[] }>('POST', `${host}/drain`);
    assert.deepEqual(
      remaining.map(({ vm_id }) => vm_id),
      [ephemeral],
    );
    await reaches(source, 'paused');
    const refused = await service.call('POST', `/vms/${source}/resume`);
    assert.equal(refused.status, 409, JSON.stringify(refused.body));
    await hosts('POST', `${host}/undrain`);
    await post(`/vms/${source}/resume`);
    await reaches(source, 'running');
    await isWhole(source, true);
    await isWhole(ephemeral, true);
    await agree();
  });

  test('what it used all the time is recorded once, though every process was killed meanwhile', async () => {
    const live = await get<SandboxUsage>(`/vms/${ephemeral}/usage`);
    await service.remove(ephemeral);
    const most = live.duration_ms + Date.now() - Date.parse(live.at);
    const total = ({ periods }: UsageHistory, name: 'duration_ms' | 'cpu_core_s'): number =>
      periods.reduce((sum, period) => sum + period[name], 0);
    const history = (resolution: 'm' | 'h') =>
      get<UsageHistory>(`/vms/${ephemeral}/usage/history?resolution=${resolution}`);
    // The last piece comes after its end: none may come between what is compared.
    const [minutes, hours] = await eventually('the end of it is recorded', async () => {
      const before = await history('m');
      const all = await history('h');
      const isWhole = total(before, 'duration_ms') >= live.duration_ms;
      return isWhole && isDeepStrictEqual(await history('m'), before) && ([before, all] as const);
    });
    const recorded = total(minutes, 'duration_ms');
    assert.ok(recorded <= most * 1.01, `${recorded} ms were recorded of at most ${most}`);
    const cpu = total(minutes, 'cpu_core_s');
    assert.ok(cpu >= live.cpu_core_s && cpu < live.cpu_core_s * 1.5, `${cpu} of ${live.cpu_core_s}`);
    for (const { duration_ms: ms } of minutes.periods)
      assert.ok(ms > 0 && ms <= 60_600, `${ms} ms in a minute`);
    assert.ok(Math.abs(total(hours, 'cpu_core_s') - cpu) < 1e-3);
    assert.equal(total(hours, 'duration_ms'), recorded);
  });

  test('the service stops cleanly after all that', async () => {
    assert.equal(await service.stop(), 0, service.lastWords);
    assert.deepEqual(await leftovers(service.home), []);
  });
});
