import assert from 'node:assert/strict';
import { readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { vmFacts } from './support/runner-process.ts';
import { TestRunner } from './support/sandboxes.ts';
import { SPEC } from './support/sandbox-spec.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const ID = '78787878-2222-4333-8444-555555555555';
const OTHER = '78787878-2222-4333-8444-666666666666';

let home: string;
let runner: TestRunner;
before(async () => {
  home = await temporaryFolder('releap-po-');
  runner = await TestRunner.open(home);
  runner.spec = { ...SPEC, scratch_mib: 64, ports: [] };
  runner.want(ID, 1, 'running');
  await runner.reported(1, 'running');
  await runner.sh(ID, 'echo here > /file; sync');
});
after(async () => await runner.dispose());

const recordPath = (): string => join(home, 'state', `${ID}.json`);

/** Files that were replaced shortly before may be empty afterwards. */
async function powerFailure(...emptied: string[]): Promise<void> {
  const vmm = await vmFacts(home, ID).catch(() => undefined);
  await runner.detach();
  if (vmm !== undefined) process.kill(vmm.pid, 'SIGKILL');
  const record = JSON.parse(await readFile(recordPath(), 'utf8')) as object;
  await writeFile(recordPath(), JSON.stringify({ ...record, bootId: 'an earlier run of the host' }));
  for (const path of emptied) await truncate(path);
  runner = await TestRunner.open(home);
  runner.spec = { ...SPEC, scratch_mib: 64, ports: [] };
}

describe('after a power failure of the host', () => {
  it('a sandbox whose VM left an empty record is stopped, and can be started again', async () => {
    await powerFailure(join(home, 'vms', ID, 'vm.json'));
    const { error } = await runner.reported(1, 'stopped');
    assert.equal(error, 'its host was restarted');
    runner.want(ID, 2, 'running');
    await runner.reported(2, 'running');
    assert.equal(await runner.sh(ID, 'cat /file'), 'here\n');
  });

  it('a sandbox with an empty record has its disk, and reaches its assigned state', async () => {
    await powerFailure(recordPath());
    runner.want(ID, 2, 'running');
    await runner.reported(2, 'running');
    assert.equal(await runner.sh(ID, 'cat /file'), 'here\n');
  });

  it('a sandbox that was paused just before can be started from its disk', async () => {
    runner.want(ID, 3, 'paused');
    await runner.reported(3, 'paused');
    await runner.reconciler.get(ID)?.idle();
    await runner.machines.persistent.allDurable();
    const keep = join(home, 'vms', ID, 'keep');
    await rm(join(keep, 'durable'));
    await powerFailure(join(keep, 'paused.json'));
    runner.want(ID, 4, 'running', { start_from: 'memory' });
    assert.equal((await runner.reported(4, 'paused')).memory, false);
    runner.want(ID, 5, 'running');
    await runner.reported(5, 'running');
    assert.equal(await runner.sh(ID, 'cat /file'), 'here\n');
  });

  it('a sandbox whose disk cannot be read fails and says so, keeps no host from starting, and can be deleted', async () => {
    runner.want(OTHER, 10, 'running');
    await runner.reported(10, 'running');
    runner.want(OTHER, 11, 'stopped');
    await runner.reported(11, 'stopped');
    await powerFailure(join(home, 'vms', OTHER, 'keep', 'disk.json'));
    runner.want(OTHER, 12, 'running');
    assert.match((await runner.reported(12, 'failed')).error ?? '', /disk/);
    runner.want(OTHER, 13, 'deleted');
    await runner.reported(13, 'deleted');
  });

  it('a sandbox with an empty record that control does not know is removed', async () => {
    await powerFailure(recordPath());
    assert.deepEqual(await readdir(join(home, 'vms')), [ID]);
    await runner.sync([]);
    for (let left = 1; left > 0; ) {
      await new Promise((resolve) => setTimeout(resolve, 20));
      left = (await readdir(join(home, 'vms'))).length + (await readdir(join(home, 'state'))).length;
    }
    assert.equal(runner.reconciler.isEmpty, true);
  });
});
