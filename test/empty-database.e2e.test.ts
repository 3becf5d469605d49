import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, beforeEach, describe, it } from 'node:test';
import { promisify } from 'node:util';
import { eventually } from '@releap/testing/eventually';
import { emptyDatabase } from '@releap/testing/postgres';
import { Service, uuidOf } from '@releap/testing/service';

const run = promisify(execFile);
const SMALL = { image: 'busybox', cpu: 1, mem_mib: 256, scratch_mib: 64, persistent: true };
const KEEP = '/var/keep';

/** Content and names of all files below a folder. */
async function digests(folder: string): Promise<string> {
  const script = 'cd "$1" && find . -type f | sort | xargs -r sha256sum';
  const { stdout } = await run('/bin/sh', ['-c', script, 'sh', folder]);
  return stdout;
}

describe('a service that is started once on an empty database, and then on its own again', () => {
  let service: Service;
  let id: string;
  let kept: string;
  let disks: string;

  before(async () => {
    service = await Service.start();
    ({ id } = await service.create({ ...SMALL, name: 'keeper' }));
    kept = join(service.home, 'runner/vms', uuidOf(id), 'keep');
    await service.exec(
      id,
      `mkdir -p ${KEEP}; seq 1 100000 > ${KEEP}/numbers; echo mine > ${KEEP}/name; sync`,
    );
  });

  beforeEach(async () => {
    await service.stop();
    disks = await digests(kept);
    assert.notEqual(disks, '');
  });

  after(async () => {
    await service?.[Symbol.asyncDispose]();
  });

  const quarantined = async (): Promise<string[]> =>
    await readdir(join(service.home, 'runner/quarantine/sandboxes')).catch(() => []);

  async function startsAsItWas(): Promise<void> {
    await service.waitFor(id, 'stopped');
    assert.equal(await digests(kept), disks);
    const { status, body } = await service.call('POST', `/vms/${id}/start`);
    assert.equal(status, 200, JSON.stringify(body));
    assert.equal((await service.waitFor(id, 'running'))['status'], 'running');
    const show = `cat ${KEEP}/name; tail -n 1 ${KEEP}/numbers; wc -l < ${KEEP}/numbers`;
    const { result } = await service.exec(id, show);
    assert.deepEqual(result.trim().split(/\s+/), ['mine', '100000', '100000']);
  }

  it('has every persistent byte, for its runner belongs to another deployment and touches nothing', async () => {
    const child = service.spawn({ DATABASE_URL: await emptyDatabase() });
    const exited = once(child, 'exit');
    await eventually('a refusal', () => /belongs to deployment/.test(service.output));
    child.kill('SIGTERM');
    await exited;
    assert.equal(await digests(kept), disks);
    assert.deepEqual(await quarantined(), []);
    await service.boot();
    await startsAsItWas();
  });

  it('has every persistent byte, also where its runner has joined no deployment yet', async () => {
    const deployment = join(service.home, 'runner/deployment');
    // As an older version of the runner has left it.
    await rm(deployment);
    await service.boot({ DATABASE_URL: await emptyDatabase() });
    await eventually('quarantine', async () => (await quarantined()).length === 1);
    await service.stop();
    // It has joined the empty one: the operator corrects that.
    await rm(deployment);
    await service.boot();
    await eventually('the way back', async () => (await quarantined()).length === 0);
    await startsAsItWas();
  });
});
