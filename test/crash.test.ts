import assert from 'node:assert/strict';
import { access, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { eventually } from '@releap/testing/eventually';
import { COUNTER, COUNTS } from '@releap/testing/guest-programs';
import { leftovers } from '@releap/testing/leftovers';
import { partPids } from '@releap/testing/processes';
import { isNightly, sampleOf } from '@releap/testing/repetitions';
import { Service } from '@releap/testing/service';
import { startKilledStores } from './support/killed-stores.ts';
import { soakFunctions } from './soak/functions-soak.ts';
import { killGatewayWithCalls } from './support/calls-in-flight.ts';

const SMALL = { image: 'busybox', cpu: 1, mem_mib: 256, scratch_mib: 64 };
/**
 * Few enough kills in a row that the supervisor's growing delays stay short. Each takes seconds of emulation: only the nightly run has
 * all.
 */
const RUNNER_STEPS = isNightly()
  ? [
      ['create:recorded', 'create:image', 'create:slot'],
      ['create:restored', 'create:configured', 'create:booted'],
      ['create:running', 'delete:recorded', 'delete:destroyed'],
    ]
  : [['create:slot', 'create:configured', 'delete:recorded']];

describe('kill -9 of any process, at any time', () => {
  let service: Service;
  /** A step's name as a file in here makes the runner kill itself there. */
  let crashes: string;
  /** Runs from the first test to the last; nothing that is killed may touch it. */
  let bystander: { id: string; port: number; worker: string };

  before(async () => {
    crashes = await temporaryFolder('releap-crash-');
    service = await Service.start({ RELEAP_CRASH_AT: crashes, RELEAP_STORE_PRIVATE_HOSTS: 'loopback' });
    const { id } = await service.create({ ...SMALL, name: 'bystander', ports: [{ vm_port: 8000 }] });
    // All state that a new VM in the place of the old one could not have: a process, a file in memory, a server.
    const { result } = await service.exec(
      id,
      `mkdir -p /www; echo from inside > /www/index.html; httpd -p 8000 -h /www; ${COUNTER}; cat /dev/shm/pid`,
    );
    bystander = { id, port: await hostPort(id), worker: result.trim() };
  });

  after(async () => {
    await service?.[Symbol.asyncDispose]();
    await rm(crashes, { recursive: true, force: true });
  });

  const armed = (step: string): Promise<boolean> =>
    access(join(crashes, step)).then(
      () => true,
      () => false,
    );

  async function hostPort(id: string): Promise<number> {
    const { body } = await service.call<{ port_map: { host_port: number }[] }>('GET', `/vms/${id}`);
    const port = body.port_map[0]?.host_port;
    assert.ok(port !== undefined, JSON.stringify(body));
    return port;
  }

  async function post(request: Record<string, unknown> = {}): Promise<string> {
    const { status, body } = await service.call<{ vm_id: string }>('POST', '/vms', { ...SMALL, ...request });
    assert.equal(status, 200, JSON.stringify(body));
    return body.vm_id;
  }

  /** Waits for a status through restarts of the process that answers. */
  async function reaches(id: string, status: string): Promise<Record<string, unknown>> {
    return await eventually(
      `${id} ${status}`,
      async () => {
        const { body } = await service.call('GET', `/vms/${id}?wait_exact=${status}&timeout_ms=5000`);
        const now = body['status'];
        if (now === status) return body;
        throw new Error(`it is ${String(now)}: ${String(body['error'])}`);
      },
      120_000,
    );
  }

  async function answers(id: string): Promise<void> {
    const { result } = await eventually('exec', () => service.exec(id, 'echo alive'));
    assert.equal(result, 'alive\n');
  }

  /** The acknowledged sandbox runs, answers, and can be deleted without a trace. */
  async function worksAndGoes(id: string): Promise<void> {
    await reaches(id, 'running');
    await answers(id);
    await service.remove(id);
  }

  async function bystanderIsWell(): Promise<void> {
    const { id, port, worker } = bystander;
    assert.equal((await reaches(id, 'running'))['error'], null);
    const { exitCode } = await eventually('exec in the bystander', () =>
      service.exec(id, `kill -0 ${worker} || exit 1; ${COUNTS}`),
    );
    assert.equal(exitCode, 0, 'its process has ended, or is frozen');
    assert.equal(await hostPort(id), port);
    const page = await eventually('its port', async () => {
      const answer = await fetch(`http://127.0.0.1:${port}/index.html`, {
        signal: AbortSignal.timeout(5_000),
      });
      return await answer.text();
    });
    assert.equal(page, 'from inside\n');
  }

  for (const [round, steps] of RUNNER_STEPS.entries()) {
    for (const step of steps) {
      test(`the runner, at ${step}: what was acknowledged is carried out`, async () => {
        const isDelete = step.startsWith('delete:');
        const early = isDelete ? await post() : undefined;
        if (early !== undefined) await reaches(early, 'running');
        const runner = (await partPids(service.home)).runner;
        await writeFile(join(crashes, step), '');
        const id = early ?? (await post());
        if (isDelete) assert.equal((await service.call('DELETE', `/vms/${id}`)).status, 200);
        await service.untilRestarted('runner', runner);
        assert.equal(await armed(step), false);
        if (!isDelete) return await worksAndGoes(id);
        await reaches(id, 'deleted');
        await service.untilNoTraceOf(id);
      });
    }

    test(`the supervisor, while a sandbox runs: the next start re-attaches to it (${round + 1})`, async () => {
      await bystanderIsWell();
      await service.kill();
      await service.boot();
      await bystanderIsWell();
    });
  }

  test('the runner, while its sandboxes are asked: no answer says that a sandbox is not there or does not run', async () => {
    const { id } = bystander;
    const before = (await partPids(service.home)).runner;
    assert.ok(before !== undefined);
    const statuses = new Set<number>();
    const toolbox = await service.toolboxUrl();
    const headers = { authorization: `Bearer ${service.bootstrap.api_key}` };
    const ask = async (): Promise<boolean> => {
      const answers = await Promise.all([
        service.call('GET', `/vms/${id}/logs`),
        fetch(`${toolbox}/${id}/files?path=/`, { headers, signal: AbortSignal.timeout(60_000) }),
      ]);
      for (const { status } of answers) statuses.add(status);
      return answers.every(({ status }) => status === 200);
    };
    process.kill(before, 'SIGKILL');
    let isAnother = false;
    do isAnother ||= (await partPids(service.home)).runner !== before;
    while (!(await ask()) || !isAnother);
    const told = [...statuses].filter((status) => ![200, 502, 503].includes(status));
    assert.deepEqual(told, []);
  });

  test('the supervisor, in the middle of a create, and a VMM while no runner runs: the next start finishes the one, and fails the other with the reason', async () => {
    const { id: lost } = await service.create(SMALL);
    const vmm = await service.vmm(lost);
    const id = await post();
    await service.kill();
    process.kill(vmm, 'SIGKILL');
    await service.boot();
    assert.match(String((await reaches(lost, 'failed'))['error']), /micro-VM ended/);
    await service.untilNoTraceOf(lost);
    await worksAndGoes(id);
  });

  for (const delayMs of sampleOf([0, 40, 160], 2)) {
    test(`the control plane, ${delayMs} ms after it acknowledged a create: the sandbox runs`, async () => {
      const id = await post();
      await sleep(delayMs);
      await service.kill9('control');
      await worksAndGoes(id);
    });
  }

  test('the control plane, right after it acknowledged a delete: nothing is left', async () => {
    const id = await post();
    await reaches(id, 'running');
    await service.call('DELETE', `/vms/${id}`);
    await service.kill9('control');
    await reaches(id, 'deleted');
    await service.untilNoTraceOf(id);
  });

  test('PostgreSQL, in the middle of a create: nothing that was acknowledged is lost', async () => {
    const id = await post({ name: 'kept' });
    await service.kill9('postgres');
    assert.equal((await reaches(id, 'running'))['name'], 'kept');
    await worksAndGoes(id);
  });

  test('the gateway, with 100 calls in flight: clear errors, the next ones are served, sandboxes continue', async () => {
    await killGatewayWithCalls(service, 100);
    await answers(bystander.id);
  });

  test('the control plane and the gateway, while invocations wait and run: each ends once', async () => {
    const kills = ['control', 'gateway'] as const;
    const killed = await soakFunctions(service, {
      name: 'crash',
      spawns: 40,
      kills,
      rounds: 1,
      pauseMs: 500,
    });
    assert.ok(killed > 0);
    assert.equal((await service.call('DELETE', '/fns/crash')).status, 204);
    await bystanderIsWell();
  });

  // Three cold boots.
  if (isNightly())
    test('the runner, while it attaches a volume: the sandbox has it with its content, and nothing is left', async () => {
      const volume = 'attached';
      assert.equal((await service.call('POST', '/volumes', { name: volume, size_gb: 1 })).status, 200);
      const steps = ['volume:mounted', 'volume:opened', 'volume:served'];
      for (const [round, step] of steps.entries()) {
        const { runner } = await partPids(service.home);
        await writeFile(join(crashes, step), '');
        const id = await post({ volumes: [{ volume, mount_path: '/data' }] });
        await service.untilRestarted('runner', runner);
        assert.equal(await armed(step), false);
        await reaches(id, 'running');
        const written = await eventually('exec', () =>
          service.exec(id, `echo ${step} > /data/${round}; cat /data/*`),
        );
        assert.deepEqual(written.result.trim().split('\n'), steps.slice(0, round + 1));
        await service.remove(id);
        await eventually('the volume is unmounted', async () =>
          (await leftovers(service.home)).every((one) => !one.includes('/runner/volumes/'))
            ? true
            : undefined,
        );
      }
      assert.equal((await service.call('DELETE', `/volumes/${volume}`)).status, 200);
      await bystanderIsWell();
    });

  test('whatever serves a mounted object store, while files are written and mounts are made: nothing is lost or left', async () => {
    await using stores = await startKilledStores(service, crashes);
    await stores.writesSurvive('proxy', async () => {
      const pid = await stores.proxyPid();
      process.kill(pid, 'SIGKILL');
      await eventually('another proxy', async () => ((await stores.proxyPid()) === pid ? undefined : true));
    });
    for (const role of ['runner', 'control'] as const) {
      // The mount may be answered, refused or cut; afterwards it can be made again, and undone.
      let cut: Promise<number> | undefined;
      await stores.writesSurvive(role, async () => {
        cut = stores.mount('/mnt/other').catch(() => 0);
        await service.kill9(role);
      });
      const status = await cut;
      await eventually('the mount', async () => {
        const again = await stores.mount('/mnt/other');
        if (again === 200 || (again === 409 && (await stores.reads('/mnt/other')))) return true;
        throw new Error(`the mount is answered with ${again}`);
      });
      assert.ok(await stores.reads('/mnt/other'), `${role}, answered ${status}`);
      await eventually('the unmount', async () => ((await stores.unmount()) === 200 ? true : undefined));
    }
    assert.ok(await stores.reads('/mnt/killed'));
    process.kill(await service.vmm(stores.id), 'SIGKILL');
    await reaches(stores.id, 'failed');
    await service.untilNoTraceOf(stores.id);
    await service.remove(stores.id);
    for (const name of ['killed', 'other'])
      assert.equal((await service.call('DELETE', `/object-stores/${name}`)).status, 200);
    await bystanderIsWell();
  });

  test('a VMM, while its sandbox runs: failed with the reason, its log kept, nothing else left', async () => {
    const { id } = await service.create(SMALL);
    process.kill(await service.vmm(id), 'SIGKILL');
    assert.match(String((await reaches(id, 'failed'))['error']), /micro-VM ended/);
    await service.untilNoTraceOf(id);
    assert.equal((await service.call('GET', `/vms/${id}/logs`)).status, 200);
    await assert.rejects(service.exec(id, 'true'), /exec answered 4\d\d: .*failed/);
    await service.remove(id);
  });

  test('a VMM, in the middle of a create: failed with the reason, nothing left', async () => {
    const id = await post();
    process.kill(await service.vmm(id), 'SIGKILL');
    const { error } = await reaches(id, 'failed');
    assert.match(String(error), /VMM? (ended|did not start|could not)|QMP connection/);
    await service.untilNoTraceOf(id);
  });

  test('everything at once, in the middle of a create and a delete', async () => {
    const going = await post();
    await reaches(going, 'running');
    await service.call('DELETE', `/vms/${going}`);
    const coming = await post();
    const pids = await partPids(service.home);
    await service.kill();
    for (const pid of Object.values(pids)) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // It had ended with its supervisor.
      }
    }
    await service.boot();
    await reaches(going, 'deleted');
    await service.untilNoTraceOf(going);
    await worksAndGoes(coming);
    await bystanderIsWell();
  });

  test('the runner, just before the service is stopped: all is removed nevertheless', async () => {
    const { runner } = await partPids(service.home);
    assert.ok(runner !== undefined);
    process.kill(runner, 'SIGKILL');
    await eventually('its end', async () =>
      (await partPids(service.home)).runner === runner ? undefined : true,
    );
    assert.equal(await service.stop(), 0, service.lastWords);
    assert.deepEqual(await leftovers(service.home), []);
    // Nothing of it runs any more, and that is what it says.
    await service.boot();
    assert.equal((await reaches(bystander.id, 'failed'))['error'], 'the service was stopped');
  });

  test('after all that, the service stops cleanly and leaves nothing on the machine', async () => {
    assert.equal(await service.stop(), 0, service.lastWords);
    assert.deepEqual(await leftovers(service.home), []);
  });
});
