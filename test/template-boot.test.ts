/** A service that ends while it boots a template. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { cp, readdir, readFile, rm } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { eventually, until } from '@releap/testing/eventually';
import { leftovers } from '@releap/testing/leftovers';
import { partPids } from '@releap/testing/processes';
import { Service } from '@releap/testing/service';
import { TEST_CACHE } from '@releap/testing/test-cache';

const root = process.getuid?.() === 0;

/** VMMs that boot a template of this cache. */
async function templateVmms(cache: string): Promise<number[]> {
  const found: number[] = [];
  for (const pid of await readdir('/proc')) {
    const command = /^\d+$/.test(pid) ? await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '') : '';
    if (command.includes('/qemu-system-') && command.includes(`${cache}/templates/.m-`))
      found.push(Number(pid));
  }
  return found;
}

/** Templates, finished or not. */
async function templates(cache: string): Promise<string[]> {
  return (await readdir(path.join(cache, 'templates'))).filter((name) => !name.startsWith('.lock-'));
}

test('a service that ends while it boots a template', { skip: root ? false : 'needs root' }, async (t) => {
  const cache = await temporaryFolder('tb-');
  // The trial of the accelerator is not what is tested here.
  await cp(path.join(TEST_CACHE, 'accelerator.json'), path.join(cache, 'accelerator.json')).catch(
    () => undefined,
  );
  await using service = await Service.prepare({ RELEAP_CACHE: cache });
  const startUntilBoot = async () => {
    const child = service.spawn();
    const closed = once(child, 'close') as Promise<[number | null]>;
    const vmm = await eventually('the VMM of a template', async () => (await templateVmms(cache))[0]);
    return { child, closed, vmm };
  };
  try {
    await t.test('leaves nothing when it is stopped', async () => {
      const { child, closed } = await startUntilBoot();
      child.kill('SIGTERM');
      assert.equal((await closed)[0], 0, service.lastWords);
      assert.deepEqual(await templateVmms(cache), []);
      assert.deepEqual(await templates(cache), []);
      assert.deepEqual(await leftovers(service.home), []);
    });

    await t.test('leaves what the next start removes when it is killed', async () => {
      const { child, closed, vmm } = await startUntilBoot();
      const { runner } = await partPids(service.home);
      assert.ok(runner !== undefined && child.pid !== undefined);
      for (const pid of [child.pid, runner]) process.kill(pid, 'SIGKILL');
      await closed;
      assert.deepEqual(await templateVmms(cache), [vmm]);
      const next = service.spawn();
      const ended = once(next, 'close') as Promise<[number | null]>;
      await until(async () => !(await templateVmms(cache)).includes(vmm));
      next.kill('SIGTERM');
      assert.equal((await ended)[0], 0, service.lastWords);
      assert.deepEqual(await templateVmms(cache), []);
      assert.deepEqual(await templates(cache), []);
      assert.deepEqual(await leftovers(service.home), []);
    });
  } finally {
    await rm(cache, { recursive: true, force: true });
  }
});
