import assert from 'node:assert/strict';
import { stat } from 'node:fs/promises';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { COUNTER, COUNTS } from '@releap/testing/guest-programs';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { vmFacts } from './support/runner-process.ts';
import { assertClock, TestRunner } from './support/sandboxes.ts';
import { SPEC } from './support/sandbox-spec.ts';
import { TRACKS_WRITES } from './support/tracks-writes.ts';
import { DESCRIPTORS } from '../src/vmm/qemu/vmm-paths.ts';
import type { Observation } from '../src/reconcile/assignment.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const SOURCE = '21111111-2222-4333-8444-555555555555';
const id = (n: number): string => `21111111-2222-4333-8444-${String(n).padStart(12, '0')}`;

let runner: TestRunner;
before(async () => {
  runner = await TestRunner.open(await temporaryFolder('releap-fk-'));
  runner.want(SOURCE, 1, 'running');
  await runner.reported(1, 'running', { of: SOURCE });
  await sh(`mkdir -p /data; dd if=/dev/urandom of=/data/file bs=1M count=2 2> /dev/null; sync
    dd if=/dev/urandom of=/dev/shm/m bs=1M count=4 2> /dev/null
    (cd /; sha256sum data/file dev/shm/m > /dev/shm/sums)
    ${COUNTER}`);
});
after(async () => await runner.dispose());

const sh = async (script: string, vmId = SOURCE): Promise<string> => await runner.sh(vmId, script);

async function fork(n: number, desired: 'running' | 'paused' = 'running'): Promise<Observation> {
  runner.want(id(n), 1, desired, {
    ...(desired === 'running' ? { start_from: 'memory' as const } : {}),
    spec: {
      ...SPEC,
      name: `child-${n}`,
      env: { GREETING: `from ${n}` },
      origin: { type: 'fork', vm_id: SOURCE },
    },
  });
  return await runner.reported(1, desired, { of: id(n) });
}

/** The memory file that a child's VMM maps. */
async function mappedBy(n: number): Promise<number> {
  const { pid } = await vmFacts(runner.home, id(n));
  return (await stat(`/proc/${pid}/fd/${DESCRIPTORS.memory}`)).ino;
}

describe('fork of a running sandbox', () => {
  it('continues with its memory, disk and processes, under its own name, address and machine id', async () => {
    const source = runner.observations.find(({ status }) => status === 'running');
    const child = await fork(1);
    assert.notEqual(child.vm_ip, source?.vm_ip);
    assert.notEqual(child.port_map?.[0]?.host_port, source?.port_map?.[0]?.host_port);
    assert.equal(child.manifest_name, source?.manifest_name);
    assert.match(await sh('cd /; sha256sum -c /dev/shm/sums', id(1)), /file: OK\n.*m: OK/);
    await sh(COUNTS, id(1));
    assert.equal(
      await sh('hostname; cat /etc/hostname; cat /etc/machine-id', id(1)),
      `child-1\nchild-1\n${id(1).replaceAll('-', '')}\n`,
    );
    assert.equal(await sh('echo $GREETING', id(1)), 'from 1\n');
  });

  it('leaves the source unchanged, and neither sees writes of the other', async () => {
    assert.match(await sh('cd /; sha256sum -c /dev/shm/sums; hostname'), /file: OK\n.*m: OK\nsubject/);
    await sh('echo source > /dev/shm/who; echo source > /data/who; sync');
    await sh('echo child > /dev/shm/who; echo child > /data/who; sync', id(1));
    assert.equal(await sh('cat /dev/shm/who /data/who'), 'source\nsource\n');
    assert.equal(await sh('cat /dev/shm/who /data/who', id(1)), 'child\nchild\n');
  });

  it('draws random numbers that no other guest draws, and has the right time', async () => {
    await Promise.all([fork(2), fork(3)]);
    const drawn = new Set<string>();
    for (const vmId of [SOURCE, id(1), id(2), id(3)]) {
      drawn.add(await sh('head -c 16 /dev/urandom | sha256sum; cat /proc/sys/kernel/random/uuid', vmId));
      await assertClock(async () => await sh('date +%s', vmId));
    }
    assert.equal(drawn.size, 4);
    for (const vmId of [id(2), id(3)]) {
      assert.match(
        await sh('cd /; sha256sum -c /dev/shm/sums; cat /data/who', vmId),
        /file: OK\n.*m: OK\nsource/,
      );
    }
  });

  it('has all of its memory, too, when the source has written much since the fork before, and then little', async () => {
    // The cheaper sum: an emulated guest takes seconds for so many bytes.
    const right = async (n: number): Promise<void> => {
      await sh('cd /dev/shm/all; md5sum -c ../all.sum', id(n));
    };
    for (const [n, file, mib] of [
      [14, 'more', 28],
      [15, 'more', 28],
      [16, 'little', 1],
      [17, 'another', 1],
      [18, 'last', 1],
    ] as const) {
      // A copy of the memory for something else.
      if (n === 18) {
        const wanted = { generation: 1, desired: 'ready', vm_id: SOURCE, kind: 'full' } as const;
        await sh('dd if=/dev/urandom of=/dev/shm/all/before bs=64k count=1 2> /dev/null');
        assert.equal((await runner.snapshot({ snapshot_id: id(50), ...wanted })).status, 'ready');
      }
      await sh(`dd if=/dev/urandom of=/dev/shm/seed bs=1M count=1 2> /dev/null; mkdir -p /dev/shm/all
        cat ${'/dev/shm/seed '.repeat(mib)} > /dev/shm/all/${file}; cd /dev/shm/all; md5sum * > ../all.sum`);
      const held = (): number => runner.machines.memoryBudget.held.mem_mib;
      const before = held();
      await fork(n);
      // With its source's changes in a file of their own, which the budget counts as a whole.
      if (TRACKS_WRITES && n === 16) assert.equal(held() - before, 24);
      await right(n);
    }
    const [first, second, third, fourth, afterSnapshot] = await Promise.all(
      [14, 15, 16, 17, 18].map(mappedBy),
    );
    assert.notEqual(first, second);
    assert.notEqual(afterSnapshot, second);
    // Where the kernel cannot tell what was written since the fork before, none of a later fork shares its memory.
    assert.equal(new Set([second, third, fourth]).size, TRACKS_WRITES ? 1 : 3);
    // The memory that they share has not changed.
    for (const n of [14, 15, 16, 17]) await right(n);
    for (const n of [14, 15, 16, 17, 18]) {
      runner.want(id(n), 9, 'deleted');
      await runner.reported(9, 'deleted', { of: id(n) });
    }
  });

  it('can be stopped and started, paused and resumed, and forked itself', async () => {
    await sh('echo kept > /data/own', id(2));
    runner.want(id(2), 2, 'stopped');
    await runner.reported(2, 'stopped', { of: id(2) });
    runner.want(id(2), 3, 'running', { start_from: 'disk' });
    await runner.reported(3, 'running', { of: id(2) });
    assert.equal(
      await sh('cat /data/own; cd /; sha256sum data/file | cut -d" " -f1', id(2)),
      `kept\n${await sh('sha256sum /data/file | cut -d" " -f1')}`,
    );
    runner.want(id(3), 2, 'paused');
    await runner.reported(2, 'paused', { of: id(3) });
    runner.want(id(3), 3, 'running', { start_from: 'memory' });
    await runner.reported(3, 'running', { of: id(3) });
    assert.match(await sh('cd /; sha256sum -c /dev/shm/sums', id(3)), /file: OK\n.*m: OK/);
    for (const n of [1, 2, 3]) {
      runner.want(id(n), 9, 'deleted');
      await runner.reported(9, 'deleted', { of: id(n) });
    }
  });
});

describe('fork of a paused sandbox', () => {
  it('is paused as the source is, and both resume from the same memory, independently', async () => {
    runner.want(SOURCE, 2, 'paused');
    await runner.reported(2, 'paused', { of: SOURCE });
    const children = [await fork(4, 'paused'), await fork(5, 'paused')];
    for (const child of children) assert.match(child.manifest_name ?? '', /^sha256:/);
    runner.want(SOURCE, 3, 'running', { start_from: 'memory' });
    await runner.reported(3, 'running', { of: SOURCE });
    for (const n of [4, 5]) {
      runner.want(id(n), 2, 'running', {
        start_from: 'memory',
        spec: { ...SPEC, name: `child-${n}` },
      });
      await runner.reported(2, 'running', { of: id(n) });
    }
    for (const vmId of [SOURCE, id(4), id(5)]) {
      assert.match(await sh('cd /; sha256sum -c /dev/shm/sums', vmId), /file: OK\n.*m: OK/);
      await sh(`echo ${vmId} > /data/me; sync`, vmId);
    }
    for (const vmId of [SOURCE, id(4), id(5)]) assert.equal(await sh('cat /data/me', vmId), `${vmId}\n`);
    assert.equal(await sh('hostname', id(5)), 'child-5\n');
  });

  it('of a source that is not there fails with the reason, and leaves nothing', async () => {
    runner.want(id(8), 1, 'running', {
      start_from: 'memory',
      spec: { ...SPEC, origin: { type: 'fork', vm_id: id(7) } },
    });
    const { error } = await runner.reported(1, 'failed', { of: id(8) });
    assert.match(error ?? '', /the sandbox that it is a fork of is not on this machine/);
  });
});
