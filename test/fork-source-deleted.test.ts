/** Forks of sandboxes that are deleted right after the fork was acknowledged, with real micro-VMs. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { SandboxRecord } from '@releap/contract';
import { eventually } from '@releap/testing/eventually';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';

const SMALL = { image: 'busybox', cpu: 0.125, mem_mib: 256, scratch_mib: 64, persistent: true };
const PATIENCE_MS = 240_000;
const FORKS = 3;

let service: Service;
before(async () => {
  service = await sharedService();
});
after(async () => service?.[Symbol.asyncDispose]());

async function post(path: string): Promise<{ vm_id: string }> {
  const answer = await service.call<{ vm_id: string }>('POST', path);
  assert.equal(answer.status, 200, `${path}: ${JSON.stringify(answer.body)}`);
  return answer.body;
}

async function reaches(id: string, status: string): Promise<void> {
  await eventually(
    `${id} is ${status}`,
    async () => {
      const { body } = await service.call<SandboxRecord>(
        'GET',
        `/vms/${id}?wait_exact=${status}&timeout_ms=5000`,
      );
      if (body.status === status) return true;
      throw new Error(`it is ${body.status}: ${body.error}`);
    },
    PATIENCE_MS,
  );
}

async function read(id: string, file: string): Promise<string> {
  const { exitCode, result } = await eventually('exec', () => service.exec(id, `cat ${file}`));
  assert.equal(exitCode, 0, result);
  return result.trim();
}

for (const state of ['running', 'paused'] as const) {
  test(`every fork of a ${state} source that is deleted at once runs, with its memory and disk`, async () => {
    const children: { id: string; source: string; word: string }[] = [];
    for (let n = 0; n < FORKS; n++) {
      const { id: source } = await service.create(SMALL);
      const word = `${state}-${n}`;
      const wrote = await eventually('exec', () =>
        service.exec(source, `echo ${word} > /on-disk; echo ${word} > /dev/shm/in-memory`),
      );
      assert.equal(wrote.exitCode, 0, wrote.result);
      if (state === 'paused') {
        await post(`/vms/${source}/pause`);
        await reaches(source, 'paused');
      }
      const fork = await post(`/vms/${source}/fork`);
      const deleted = await service.call<{ status: string }>('DELETE', `/vms/${source}`);
      assert.deepEqual([deleted.status, deleted.body.status], [200, 'deleting']);
      children.push({ id: fork.vm_id, source, word });
    }
    for (const { id, source, word } of children) {
      await reaches(id, state);
      if (state === 'paused') {
        await post(`/vms/${id}/resume`);
        await reaches(id, 'running');
      }
      assert.equal(await read(id, '/on-disk'), word);
      assert.equal(await read(id, '/dev/shm/in-memory'), word);
      await reaches(source, 'deleted');
      await service.call('DELETE', `/vms/${id}`);
    }
  });
}
