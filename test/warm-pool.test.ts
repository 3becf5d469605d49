import assert from 'node:assert/strict';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { eventually } from '@releap/testing/eventually';
import { leftovers } from '@releap/testing/leftovers';
import { partPids } from '@releap/testing/processes';
import { ownerLives, ownerOf } from '@releap/testing/run/run-owner';
import { Service, uuidOf } from '@releap/testing/service';

/** The default size, which the pool has; all else differs from sandbox to sandbox. */
const REQUEST = { image: 'busybox', scratch_mib: 64 };

describe('sandboxes out of the pool of waiting machines', () => {
  let service: Service;
  let crashes: string;

  before(async () => {
    crashes = await temporaryFolder('releap-crash-');
    service = await Service.start({
      RELEAP_WARM_POOL: '1',
      RELEAP_CRASH_AT: crashes,
      RELEAP_LOG_LEVEL: 'debug',
    });
  });
  after(async () => {
    await service?.[Symbol.asyncDispose]();
    await rm(crashes, { recursive: true, force: true });
  });

  interface Waiting {
    name: string;
    pid: number;
    /** Its VMM as `ownerOf` names it: the pid alone is soon that of another process. */
    owner: string;
  }

  /**
   * The machines that wait: their VMMs live, and it has been said of them that they do. With creates in quick succession, or on a
   * slow machine, more than one waits.
   */
  async function allWaiting(): Promise<Waiting[]> {
    return await eventually('a machine that waits', async () => {
      const folder = join(service.home, 'runner/vms');
      const found: Waiting[] = [];
      for (const name of (await readdir(folder)).filter((entry) => entry.startsWith('warm-'))) {
        const { process: vmm } = JSON.parse(await readFile(join(folder, name, 'vm.json'), 'utf8')) as {
          process?: { pid: number };
        };
        const owner = vmm && ownerOf(vmm.pid);
        if (vmm === undefined || owner === undefined) continue;
        const log = await readFile(join(service.home, 'log/runner.log'), 'utf8');
        const waits = log
          .split('\n')
          .some(
            (line) =>
              line.includes(name) &&
              line.includes('"a micro-VM waits"') &&
              line.includes('"recipe":"template'),
          );
        if (waits) found.push({ name, pid: vmm.pid, owner });
      }
      return found.length > 0 && found;
    });
  }
  const waiting = async (): Promise<Waiting> => (await allWaiting())[0] ?? assert.fail('none waits');

  /** What a process has used. */
  async function cpuTicks(pid: number): Promise<number> {
    const fields = (await readFile(`/proc/${pid}/stat`, 'utf8')).replace(/^.*\) /, '').split(' ');
    return Number(fields[11]) + Number(fields[12]);
  }

  /** Whether this sandbox came out of the pool, as the runner's log says. */
  async function wasWarm(id: string): Promise<boolean> {
    return await eventually('a line in the log', async () => {
      const log = await readFile(join(service.home, 'log/runner.log'), 'utf8');
      const line = log
        .split('\n')
        .findLast((text) => text.includes(uuidOf(id)) && text.includes('"sandbox runs"'));
      return line === undefined ? undefined : (JSON.parse(line) as { warm: boolean }).warm;
    });
  }

  /** A sandbox out of the pool: its VMM is one that waited before. Again, should that have been dismissed, or have died, just then. */
  async function createWarm(request: Record<string, unknown>): Promise<{ id: string }> {
    for (let tries = 5; ; tries--) {
      const pids = (await allWaiting()).map(({ pid }) => pid);
      const made = await service.create({ ...REQUEST, ...request });
      if ((await wasWarm(made.id)) && pids.includes(await service.vmm(made.id))) return made;
      assert.ok(tries > 0, 'no create ever found a waiting machine');
      await service.remove(made.id);
    }
  }

  test('each has an identity, an environment and random numbers of its own', async () => {
    const seen = new Map<string, string>();
    const ids: string[] = [];
    for (let i = 1; i <= 4; i++) {
      const { id } = await createWarm({ name: `warm ${i}`, env: { NUMBER: String(i) } });
      ids.push(id);
      const asked = Date.now();
      const { result } = await service.exec(
        id,
        'hostname; cat /etc/machine-id; head -c 16 /dev/urandom | md5sum; cat /proc/sys/kernel/random/uuid; ' +
          'echo $NUMBER; df -k / | tail -1 | awk "{print \\$2}"; date +%s; ls /warm* 2>/dev/null; touch /warm-was-here',
      );
      const [hostname, machine, random, uuid, number, kib, seconds, ...rest] = result.trim().split('\n');
      assert.deepEqual([hostname, number, rest], [`warm-${i}`, String(i), []]);
      assert.equal(machine, uuidOf(id).replaceAll('-', ''));
      assert.ok(Number(kib) > 30 * 1024 && Number(kib) <= 64 * 1024, result);
      const told = Number(seconds) * 1000;
      assert.ok(told > asked - 30_000 && told < Date.now() + 30_000, 'its clock is the one of the pool');
      for (const value of [hostname, machine, random, uuid] as string[]) {
        assert.equal(seen.get(value), undefined, `${value} is also of sandbox ${seen.get(value)}`);
        seen.set(value, id);
      }
    }
    await Promise.all(ids.map((id) => service.remove(id)));
  });

  test('limits and ports are those that were asked for', async () => {
    const { id } = await createWarm({ cpu: 1.5, ports: [{ vm_port: 80 }] });
    await service.exec(id, 'mkdir /www; echo warm > /www/index.html; httpd -h /www');
    const { body } = await service.call<{ port_map: { host_port: number }[] }>('GET', `/vms/${id}`);
    const answer = await fetch(`http://127.0.0.1:${body.port_map[0]?.host_port}/`);
    assert.equal(await answer.text(), 'warm\n');
    await service.remove(id);
  });

  test('a waiting machine that dies is replaced, and no create notices', async () => {
    const { name, pid } = await waiting();
    process.kill(pid, 'SIGKILL');
    await service.remove((await service.create(REQUEST)).id);
    assert.notEqual((await waiting()).name, name);
  });

  for (const step of ['create:slot', 'create:configured']) {
    test(`the runner dies at ${step} of a hand-over: the sandbox runs, the old machine is gone`, async () => {
      const { name, owner } = await waiting();
      const runner = (await partPids(service.home)).runner;
      await writeFile(join(crashes, step), '');
      const { body } = await service.call<{ vm_id: string }>('POST', '/vms', REQUEST);
      await service.untilRestarted('runner', runner);
      assert.equal((await service.waitFor(body.vm_id, 'running'))['status'], 'running', service.lastWords);
      assert.ok(!ownerLives(owner));
      assert.ok(!(await readdir(join(service.home, 'runner/vms'))).includes(name));
      const { result } = await eventually('exec', () => service.exec(body.vm_id, 'echo alive'));
      assert.equal(result, 'alive\n');
      await service.remove(body.vm_id);
    });
  }

  test('a runner that is killed leaves no waiting machine of its own behind', async () => {
    const { name, owner } = await waiting();
    await service.kill9('runner');
    await eventually('the end of the old one', () => !ownerLives(owner));
    assert.notEqual((await waiting()).name, name);
  });

  test('a waiting machine uses no CPU time of others', async () => {
    await eventually('it is idle', async () => {
      // One more than are wanted now is dismissed.
      const { pid } = await waiting();
      const before = await cpuTicks(pid);
      await sleep(300);
      return (await cpuTicks(pid)) - before <= 1 ? true : undefined;
    });
  });

  test('the service stops and leaves nothing, the machine that waits included', async () => {
    await waiting();
    assert.equal(await service.stop(), 0);
    assert.deepEqual(await leftovers(service.home), []);
  });
});
