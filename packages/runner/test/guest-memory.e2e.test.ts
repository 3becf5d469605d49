import assert from 'node:assert/strict';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { VmFolders } from '../src/machine/vm-folder.ts';
import type { VmRecord } from '../src/machine/vm-folder.ts';
import { writtenMemory } from '../src/memory/available-memory.ts';
import { guestMemoryFile } from '../src/memory/guest-memory.ts';
import { overheadMib } from '../src/vmm/tuning.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { vmFacts } from './support/runner-process.ts';
import { SPEC } from './support/sandbox-spec.ts';
import { TestRunner } from './support/sandboxes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const MIB = 2 ** 20;
const SOURCE = '32111111-2222-4333-8444-000000000001';
const CHILD = '32111111-2222-4333-8444-000000000002';
/** Of this much less than is available no process is ended. */
const SPARE_MIB = 12;
/** Most of the machine's memory is free at first. */
const FREE_SHARE = 1 / 3;

let runner: TestRunner;
before(async () => {
  runner = await TestRunner.open(await temporaryFolder('releap-gm-'));
  runner.want(SOURCE, 1, 'running');
  await runner.reported(1, 'running', { of: SOURCE });
});
after(async () => await runner.dispose());

async function recordOf(vmId: string): Promise<VmRecord & { process: { pid: number } }> {
  const record = await new VmFolders(join(runner.home, 'vms')).load(vmId);
  return { ...(record as VmRecord), process: record?.process ?? assert.fail('it has no VMM') };
}

/** Writes to all memory that is free, and frees it. @returns MiB */
async function fill(vmId: string): Promise<number> {
  const output = await runner.sh(
    vmId,
    `mkdir -p /full && mount -t tmpfs -o size=100% full /full && free=$(awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo) &&
     dd if=/dev/zero of=/full/x bs=1M count=$((free - ${SPARE_MIB})) 2> /dev/null && stat -c %s /full/x; umount /full`,
  );
  const filled = Number(output) / MIB;
  assert.ok(filled > SPEC.mem_mib * FREE_SHARE, `only ${output} bytes could be written`);
  return filled;
}

async function assertCostsOnce(vmId: string): Promise<void> {
  const record = await recordOf(vmId);
  const { pid } = record.process;
  const fileHolesMib = record.fileHolesMib ?? assert.fail('its holes are mapped from the file');
  const allocated = async (): Promise<number> => ((await stat(guestMemoryFile(pid))).blocks * 512) / MIB;
  const before = await allocated();
  const filled = await fill(vmId);
  const written = (await writtenMemory(pid)) / MIB;
  assert.ok(written > filled, `the VMM has written ${written} MiB, its guest ${filled}`);
  const more = (await allocated()) - before;
  assert.ok(more <= fileHolesMib, `${more} MiB were allocated in the file, too`);
  const { accelerator } = runner.machines.templates.platform;
  const { memoryLimit } = await vmFacts(runner.home, vmId);
  assert.equal(memoryLimit / MIB, SPEC.mem_mib + overheadMib(accelerator, SPEC.mem_mib) + fileHolesMib);
  assert.equal(await runner.sh(vmId, 'echo alive'), 'alive\n');
}

describe('the memory of a guest that fills all of it is allocated once', () => {
  it('from a template', async () => await assertCostsOnce(SOURCE));

  it('of a fork', async () => {
    const origin = { type: 'fork' as const, vm_id: SOURCE };
    runner.want(CHILD, 1, 'running', { start_from: 'memory', spec: { ...runner.spec, origin } });
    await runner.reported(1, 'running', { of: CHILD });
    await assertCostsOnce(CHILD);
  });

  it('after a pause, whose image has no pages that the guest has filled with zeros', async () => {
    const written = (await writtenMemory((await recordOf(SOURCE)).process.pid)) / MIB;
    runner.want(SOURCE, 2, 'paused');
    await runner.reported(2, 'paused', { of: SOURCE });
    const saved = (await stat(join(runner.home, 'vms', SOURCE, 'keep', 'memory'))).blocks * 512;
    assert.ok(saved / MIB < written, `${saved / MIB} of ${written} MiB`);
    runner.want(SOURCE, 3, 'running', { start_from: 'memory' });
    await runner.reported(3, 'running', { of: SOURCE });
    await assertCostsOnce(SOURCE);
  });
});
