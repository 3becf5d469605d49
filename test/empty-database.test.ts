import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { promisify } from 'node:util';
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
  let disks: string;

  before(async () => {
    service = await Service.start();
    ({ id } = await service.create({ ...SMALL, name: 'keeper' }));
    await service.exec(
      id,
      `mkdir -p ${KEEP}; seq 1 100000 > ${KEEP}/numbers; echo mine > ${KEEP}/name; sync`,
    );
    await service.stop();
    disks = await digests(join(service.home, 'runner/vms', uuidOf(id), 'keep'));
    await service.boot({ DATABASE_URL: await emptyDatabase() });
    await service.stop();
  });

  after(async () => {
    await service?.[Symbol.asyncDispose]();
  });

  it('has every persistent byte, and its start brings the old disk', async () => {
    await service.boot();
    const kept = join(service.home, 'runner/vms', uuidOf(id), 'keep');
    await service.waitFor(id, 'stopped');
    assert.deepEqual(
      (await readdir(join(service.home, 'runner/quarantine/sandboxes')).catch(() => [])).length,
      0,
    );
    assert.equal(await digests(kept), disks);
    const { status, body } = await service.call('POST', `/vms/${id}/start`);
    assert.equal(status, 200, JSON.stringify(body));
    assert.equal((await service.waitFor(id, 'running'))['status'], 'running');
    const { result } = await service.exec(
      id,
      `cat ${KEEP}/name; tail -n 1 ${KEEP}/numbers; wc -l < ${KEEP}/numbers`,
    );
    assert.deepEqual(result.trim().split(/\s+/), ['mine', '100000', '100000']);
  });
});
