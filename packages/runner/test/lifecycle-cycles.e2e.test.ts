import assert from 'node:assert/strict';
import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { eventually } from '@releap/testing/eventually';
import { COUNTER } from '@releap/testing/guest-programs';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { checkClock } from '../src/reconcile/check-clock.ts';
import { assertClock, TestRunner } from './support/sandboxes.ts';
import type { Observation } from '../src/reconcile/assignment.ts';

isolateNetwork(fileURLToPath(import.meta.url));

/** More of them on request: `LIFECYCLE_CYCLES=100 npm test`. */
const CYCLES = Number(process.env['LIFECYCLE_CYCLES'] ?? 3);
const CLOCK_DEADLINE_MS = 60_000;
const ID = '11111111-2222-4333-8444-555555555555';

/** A sandbox runs before its entrypoint has printed anything. */
const ENTRYPOINT_BEGUN =
  'until tail -n 1 /entrypoint.log 2> /dev/null | grep -q started; do sleep 0.05; done';

let runner: TestRunner;
let generation = 1;
before(async () => {
  runner = await TestRunner.open(await temporaryFolder('releap-lc-'));
});
after(() => runner.dispose());

const sh = (shell: string) => runner.sh(ID, shell);
const vmFolder = (...rest: string[]) => join(runner.home, 'vms', ID, ...rest);

async function go(desired: 'running' | 'stopped' | 'paused', from?: 'disk' | 'memory'): Promise<Observation> {
  generation += 1;
  runner.want(ID, generation, desired, from === undefined ? {} : { start_from: from });
  const observation = await runner.reported(generation, desired);
  await runner.reconciler.get(ID)?.idle();
  return observation;
}

async function fetchPage(port: number): Promise<string> {
  return await (await fetch(`http://127.0.0.1:${port}/page`)).text();
}

describe('a persistent sandbox', () => {
  it('is created, with a disk of its own and no copy of any memory', async () => {
    runner.want(ID, 1, 'running');
    const { vm_ip, port_map, manifest_name } = await runner.reported(1, 'running');
    assert.match(vm_ip ?? '', /^100\./);
    assert.equal(port_map?.[0]?.vm_port, 8080);
    assert.match(manifest_name ?? '', /^sha256:/);
    assert.deepEqual((await readdir(vmFolder('keep'))).sort(), [
      'base.ext4',
      'disk.json',
      'layer-0.qcow2',
      'root.squashfs',
    ]);
    await sh(`mkdir -p /data /www; echo served > /www/page; httpd -p 8080 -h /www;
      ${COUNTER}; echo started`);
  });

  it(`keeps its processes, files, ports and memory over ${CYCLES} pauses`, async () => {
    const seen = new Set<string>();
    const addresses = new Set<string | undefined>();
    for (let cycle = 1; cycle <= CYCLES; cycle += 1) {
      // Written and not synced: most of it is in the guest's memory only.
      await sh(`dd if=/dev/urandom of=/data/p${cycle} bs=1M count=2 2> /dev/null;
        dd if=/dev/urandom of=/dev/shm/m bs=1M count=4 2> /dev/null;
        (cd /data && sha256sum p* > /dev/shm/sums); sha256sum /dev/shm/m > /dev/shm/m.sum`);
      const before = Number(await sh('cat /dev/shm/count'));
      await go('paused');
      assert.deepEqual(
        (await readdir(vmFolder())).filter((name) => name !== 'keep'),
        [],
      );
      assert.equal(runner.network.adopt(ID), undefined);
      const { vm_ip, port_map } = await go('running', 'memory');
      addresses.add(vm_ip);
      await assertClock(async () => await sh('date +%s'));
      await sh('cd /data && sha256sum -c /dev/shm/sums && sha256sum -c /dev/shm/m.sum');
      const later = Number(await sh('cat /dev/shm/count'));
      assert.ok(later >= before, `the counter was at ${before} and is at ${later}`);
      assert.equal(await fetchPage(port_map?.[0]?.host_port ?? 0), 'served\n');
      seen.add(await sh('head -c 32 /dev/urandom | sha256sum'));
    }
    assert.equal(seen.size, CYCLES);
    // Neither what the guest calls itself nor what its user wrote into such files is touched.
    assert.equal(await sh('hostname; cat /etc/machine-id'), `subject\n${ID.replaceAll('-', '')}\n`);
    assert.equal(await sh('cat /entrypoint.log'), 'started\n');
  });

  it(`keeps its disk over ${CYCLES} stops, its entrypoint being asked to end each time`, async () => {
    await sh('echo "10.1.2.3 mine" >> /etc/hosts; rm -f /entrypoint.log');
    for (let cycle = 1; cycle <= CYCLES; cycle += 1) {
      await sh(`dd if=/dev/urandom of=/data/s${cycle} bs=1M count=2 2> /dev/null; (cd /data && sha256sum p* s* > /sums);
        (trap "echo ended > /bystander; exit 0" TERM; touch /dev/shm/trapped; while :; do sleep 0.5; done) > /dev/null 2>&1 &
        while [ ! -e /dev/shm/trapped ]; do sleep 0.05; done`);
      const { vm_ip, manifest_name } = await go('stopped');
      assert.equal(vm_ip, undefined);
      assert.match(manifest_name ?? '', /^sha256:/);
      assert.deepEqual((await readdir(vmFolder('keep'))).sort(), [
        'base.ext4',
        'disk.json',
        'layer-0.qcow2',
        'root.squashfs',
      ]);
      assert.deepEqual(await readdir(vmFolder()), ['keep']);
      assert.equal(runner.network.adopt(ID), undefined);
      await go('running', 'disk');
      await sh('cd /data && sha256sum -c /sums');
      assert.equal(await sh('cat /bystander; rm /bystander'), 'ended\n');
      assert.match(
        await sh(`${ENTRYPOINT_BEGUN}; cat /entrypoint.log; rm /entrypoint.log`),
        /asked\nstarted\n$/,
      );
      assert.equal(await sh('ls /dev/shm'), '');
    }
    assert.equal(await sh('hostname; cat /etc/machine-id'), `subject\n${ID.replaceAll('-', '')}\n`);
    assert.match(await sh('cat /etc/hosts'), /subject\n10\.1\.2\.3 mine\n$/);
    assert.equal(await sh('echo $GREETING'), 'hello\n');
  });

  it('started while it is paused, loses its processes and not one file', async () => {
    await sh('dd if=/dev/urandom of=/data/late bs=1M count=4 2> /dev/null; sha256sum /data/late > /late.sum');
    await go('paused');
    await go('running', 'disk');
    await sh('sha256sum -c /late.sum; cd /data && sha256sum -c /sums');
    assert.equal(await sh('ls /dev/shm'), '');
    assert.doesNotMatch(
      await readFile(join(runner.home, 'logs', ID, 'console.log'), 'utf8'),
      /corrupt|error/i,
    );
  });

  it('reports its status for a repeated assignment, and nothing for an older one', async () => {
    const { length } = runner.observations;
    runner.want(ID, generation, 'running', { start_from: 'disk' });
    runner.want(ID, generation - 1, 'stopped');
    await runner.reconciler.get(ID)?.idle();
    assert.deepEqual(
      runner.observations.slice(length).map(({ status }) => status),
      ['running'],
    );
  });

  it('is detached, and re-attached by the next runner, paused or running', async () => {
    await sh('echo here > /dev/shm/here');
    await runner.detach();
    runner = await TestRunner.open(runner.home);
    assert.equal(await sh('cat /dev/shm/here'), 'here\n');
    await go('paused');
    await runner.detach();
    runner = await TestRunner.open(runner.home);
    await go('running', 'memory');
    assert.equal(await sh('cat /dev/shm/here'), 'here\n');
  });

  it('is shut down with its service, and starts with the next', async () => {
    await sh('echo kept > /kept; rm -f /entrypoint.log');
    await runner.shutDown();
    assert.equal(runner.observations.at(-1)?.status, 'stopped');
    runner = await TestRunner.open(runner.home);
    runner.want(ID, generation, 'running', { start_from: 'disk' });
    assert.equal((await runner.reported(generation, 'stopped')).error, 'the service was stopped');
    await go('running', 'disk');
    assert.equal(await sh(`${ENTRYPOINT_BEGUN}; cat /kept; cat /entrypoint.log`), 'kept\nasked\nstarted\n');
  });

  it('paused when its service stops, is still so afterwards', async () => {
    await sh('echo here > /dev/shm/here');
    await go('paused');
    await runner.shutDown();
    runner = await TestRunner.open(runner.home);
    runner.want(ID, generation, 'paused');
    await runner.reported(generation, 'paused');
    await go('running', 'memory');
    assert.equal(await sh('cat /dev/shm/here'), 'here\n');
  });

  it('has the right time when the clock of its host was set', async () => {
    // As when the host's clock was set, or the host was suspended, and the guest's clock was not set.
    await sh('date -s @1000000000');
    runner.reconciler.setClocks();
    await eventually('a clock that is right', async () => {
      await assertClock(() => sh('date +%s'));
      return true;
    });
  });

  it('has the right time again when its own root has set another', async () => {
    const sandbox = runner.reconciler.get(ID);
    assert.ok(sandbox?.live);
    const guest = await sandbox.live.guest();
    const check = async (): Promise<boolean> => {
      let isOff = false;
      await checkClock(guest, CLOCK_DEADLINE_MS, () => (isOff = true));
      return isOff;
    };
    for (const wrong of ['1000000000', '$(($(date +%s) + 3600))']) {
      // Once a minute the runner compares it too, and may do so in between.
      await eventually(`a clock that is found to be wrong: ${wrong}`, async () => {
        await sh(`date -s @${wrong}`);
        return await check();
      });
      sandbox.setClock();
      await eventually('a clock that is right', async () => ((await check()) ? undefined : true));
      await assertClock(() => sh('date +%s'));
    }
    // Both ways, and the kernel takes it.
    for (const behind of [0.5, -0.5]) await guest.slewClock(behind * 1000);
    await assert.rejects(guest.slewClock(1001), /behind_us/);
    await guest.slewClock(0);
  });

  it('stopped by its own guest, is stopped', async () => {
    await sh('sync; echo o > /proc/sysrq-trigger').catch(() => undefined);
    const { error } = await runner.reported(generation, 'stopped');
    assert.equal(error, 'the guest powered itself off');
    await go('running', 'disk');
  });

  for (const [what, key] of [
    ['restarted by its own guest', 'b'],
    ['whose kernel panics', 'c'],
  ] as const) {
    it(`${what}, is stopped, and keeps its disk`, async () => {
      await sh(`echo ${key} > /kept; sync; echo ${key} > /proc/sysrq-trigger`).catch(() => undefined);
      const { error } = await runner.reported(generation, 'stopped');
      assert.equal(error, 'the guest restarted, or crashed');
      await go('running', 'disk');
      assert.equal(await sh('cat /kept'), `${key}\n`);
    });
  }

  it('deleted, leaves nothing', async () => {
    generation += 1;
    runner.want(ID, generation, 'deleted');
    await runner.reported(generation, 'deleted');
    await assert.rejects(stat(vmFolder()), { code: 'ENOENT' });
  });
});
