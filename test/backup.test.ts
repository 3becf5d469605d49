/** A backup of a service with sandboxes, and what a restore of the control plane alone leaves of them. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import { programOf } from '@releap/runner/program';
import { eventually } from '@releap/testing/eventually';
import { REPO, Service, uuidOf } from '@releap/testing/service';

const MAIN = programOf(join(REPO, 'packages/server/src/main.ts'));
const SMALL = { image: 'busybox', cpu: 1, mem_mib: 256, scratch_mib: 64 };

describe('a backup of the whole service', () => {
  let service: Service;
  before(async () => {
    service = await Service.start();
  });
  after(() => service?.[Symbol.asyncDispose]());

  const releap = async (args: string[]): Promise<string> => {
    const env = {
      ...process.env,
      ...service.env,
      RELEAP_HOME: service.home,
      RELEAP_BACKUP_PASSPHRASE: 'correct horse battery staple',
    };
    const { stdout, stderr } = await promisify(execFile)(process.execPath, [MAIN, ...args], { env });
    return stdout + stderr;
  };

  test('hosts keep what they run and have; what the backup does not know is in the quarantine', async () => {
    const stopped = await service.create({ ...SMALL, name: 'stopped', persistent: true });
    await service.exec(stopped.id, 'echo before the backup > /root/file; sync');
    await service.call('POST', `/vms/${stopped.id}/stop`);
    await service.waitFor(stopped.id, 'stopped');
    const running = await service.create({ ...SMALL, name: 'running' });
    await service.exec(running.id, 'echo in memory > /dev/shm/file');
    const vmm = await service.vmm(running.id);

    const file = join(service.home, '../service.backup');
    assert.match(await releap(['backup', file]), /encrypted/);
    // The generation of the host grows past that of the backup.
    await service.call('POST', `/vms/${stopped.id}/start`);
    await service.waitFor(stopped.id, 'running');
    await service.call('POST', `/vms/${stopped.id}/stop`);
    await service.waitFor(stopped.id, 'stopped');
    const later = await service.create({ ...SMALL, name: 'later', persistent: true });
    await service.exec(later.id, 'echo after the backup > /root/file; sync');

    // As when the machine of the control plane is lost: the sandboxes of the host run on.
    await service.kill();
    await eventually('the parts have ended', async () => {
      const output = await releap(['restore', file, '--force']).catch((error: Error & { stderr: string }) => {
        assert.match(error.stderr, /is in use/);
      });
      if (output === undefined) return false;
      assert.match(output, /sandboxes: running, stopped/);
      return true;
    });
    await service.boot();

    assert.equal((await service.waitFor(running.id, 'running'))['status'], 'running');
    assert.equal(await service.vmm(running.id), vmm);
    assert.equal((await service.exec(running.id, 'cat /dev/shm/file')).result.trim(), 'in memory');
    await service.call('POST', `/vms/${stopped.id}/start`);
    assert.equal((await service.waitFor(stopped.id, 'running'))['status'], 'running');
    assert.equal((await service.exec(stopped.id, 'cat /root/file')).result.trim(), 'before the backup');
    assert.equal((await service.call('GET', `/vms/${later.id}`)).status, 404);
    await eventually('its disk is in the quarantine', async () =>
      (await readdir(join(service.home, 'runner/quarantine/sandboxes'))).some((name) =>
        name.startsWith(uuidOf(later.id)),
      ),
    );
    for (const { id } of [stopped, running]) await service.remove(id);
    await rm(file);
  });
});
