import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { VmFolders } from '../src/machine/vm-folder.ts';
import { writtenMemory } from '../src/memory/available-memory.ts';
import { guestSize } from '../src/template/machine-size.ts';
import { overheadMib } from '../src/vmm/tuning.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { lowerMemoryLimit, vmFacts } from './support/runner-process.ts';
import { SPEC } from './support/sandbox-spec.ts';
import { TestRunner } from './support/sandboxes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

/** Of a machine of 256 MiB. */
const ASKED_MIB = 160;
/** As many stay mapped from the file of a template. */
const SMALL_HOLES_MIB = 8;
const WHOLE = '31111111-2222-4333-8444-000000000001';
const PART = '31111111-2222-4333-8444-000000000002';
const CHILD = '31111111-2222-4333-8444-000000000003';
const LOWERED = '31111111-2222-4333-8444-000000000004';
const MORE = `dd if=/dev/zero of=/dev/null bs=${ASKED_MIB}M count=1 2>/dev/null; echo $?`;

let runner: TestRunner;
before(async () => {
  runner = await TestRunner.open(await temporaryFolder('releap-am-'), { waiting: 1 });
  await runner.warmedUp();
});
after(async () => await runner.dispose());

/** The host lets a VM have its memory, what its VMM needs, and small holes of a memory file, whose pages may count twice. */
async function assertLimit(vmId: string, memMib: number): Promise<void> {
  const { memoryLimit } = await vmFacts(runner.home, vmId);
  const { accelerator } = runner.machines.templates.platform;
  const more = memoryLimit / 2 ** 20 - memMib - overheadMib(accelerator, SPEC.mem_mib);
  assert.ok(more >= 0 && more <= SMALL_HOLES_MIB, `${more} MiB more than its memory and what its VMM needs`);
}

async function availableMib(vmId: string): Promise<number> {
  return Number(await runner.sh(vmId, `awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo`));
}

it('a sandbox that asks for less than its machine has gets no more, and its VMM neither', async () => {
  runner.want(WHOLE, 1, 'running');
  await runner.reported(1, 'running', { of: WHOLE });
  runner.spec = { ...SPEC, mem_mib: ASKED_MIB };
  runner.want(PART, 1, 'running');
  await runner.reported(1, 'running', { of: PART });
  await assertLimit(WHOLE, SPEC.mem_mib);
  await assertLimit(PART, ASKED_MIB);
  const [whole, part] = [await availableMib(WHOLE), await availableMib(PART)];
  assert.ok(part < ASKED_MIB && whole - part > (SPEC.mem_mib - ASKED_MIB) / 2, `${part} of ${whole} MiB`);
});

it('a process that takes more is ended in the guest, and the sandbox runs on', async () => {
  assert.equal(await runner.sh(WHOLE, MORE), '0\n');
  assert.equal(await runner.sh(PART, MORE), '137\n');
  // The usual way to have huge pages does not give the sandbox what it must not have.
  await runner.sh(PART, 'echo 0 > /proc/sys/vm/nr_hugepages');
  assert.equal(await runner.sh(PART, MORE), '137\n');
  assert.equal(await runner.sh(PART, 'echo alive'), 'alive\n');
});

it('what a guest may use is less than what ends it from outside', async () => {
  const record = await new VmFolders(join(runner.home, 'vms')).load(PART);
  const written = (await writtenMemory(record?.process?.pid ?? assert.fail('it has no VMM'))) / 2 ** 20;
  const { machines } = runner;
  const asked = { vcpus: SPEC.vcpus, memMib: ASKED_MIB };
  const most = machines.writtenMaxMib(guestSize(asked), false) ?? assert.fail('it has no limit');
  // The guest has tried to use more than it has, several times.
  assert.ok(written > ASKED_MIB / 2 && written < most, `${written} of ${most} MiB`);
  assert.ok(most < (machines.writtenMaxMib(guestSize({ ...asked, memMib: ASKED_MIB + 2 }), false) ?? 0));
  assert.equal(machines.writtenMaxMib(guestSize({ ...asked, memMib: SPEC.mem_mib }), false), undefined);
});

it('a fork, and a sandbox that is resumed, have neither more nor less', async () => {
  const origin = { type: 'fork' as const, vm_id: PART };
  runner.want(CHILD, 1, 'running', { start_from: 'memory', spec: { ...runner.spec, origin } });
  await runner.reported(1, 'running', { of: CHILD });
  runner.want(PART, 2, 'paused');
  await runner.reported(2, 'paused', { of: PART });
  runner.want(PART, 3, 'running', { start_from: 'memory' });
  await runner.reported(3, 'running', { of: PART });
  for (const vmId of [PART, CHILD]) {
    await assertLimit(vmId, ASKED_MIB);
    assert.equal(await runner.sh(vmId, MORE), '137\n');
    assert.equal(await runner.sh(vmId, 'echo alive'), 'alive\n');
  }
});

it('a VMM that reaches the limit of its control group is ended with the reason, and no other one', async () => {
  runner.spec = { ...SPEC, persistent: false };
  runner.want(LOWERED, 1, 'running');
  await runner.reported(1, 'running', { of: LOWERED });
  const { memoryBytes } = (await runner.machines.usage(LOWERED)) ?? assert.fail('it has no control group');
  await lowerMemoryLimit(runner.home, LOWERED, memoryBytes + 16 * 2 ** 20);
  const taking = runner.sh(LOWERED, MORE).catch(() => undefined);
  const { error } = await runner.reported(1, 'failed', { of: LOWERED });
  await taking;
  assert.match(error ?? '', /^the micro-VM was ended because it used up its memory limit/);
  const { sandbox, host, unknown } = runner.machines.oomKills.counts;
  assert.deepEqual([sandbox + unknown, host], [1, 0]);
  assert.equal(await runner.sh(WHOLE, 'echo alive'), 'alive\n');
});
