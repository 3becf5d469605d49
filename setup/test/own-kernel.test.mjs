import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { SetupError } from '../command.mjs';
import { ensureOwnKernel, ownKernel } from '../own-kernel.mjs';

const BUILD = fileURLToPath(new URL('../../build', import.meta.url));

let dir;
before(async () => {
  dir = await mkdtemp(path.join(tmpdir(), 'releap-own-kernel-'));
});
after(() => rm(dir, { recursive: true, force: true }));

const refused = (env, pattern) =>
  assert.rejects(ownKernel(env), (error) => error instanceof SetupError && pattern.test(error.message));

test('a file that is no kernel is refused with its name and what is allowed', async () => {
  assert.equal(await ownKernel({}), undefined);
  assert.equal(await ownKernel({ RELEAP_GUEST_KERNEL: '' }), undefined);
  await refused({ RELEAP_GUEST_KERNEL: 'vmlinuz' }, /RELEAP_GUEST_KERNEL=vmlinuz: must be an absolute path/);
  const missing = path.join(dir, 'missing');
  await refused({ RELEAP_GUEST_KERNEL: missing }, /RELEAP_GUEST_KERNEL=.*missing: must be a readable kernel/);
  const text = path.join(dir, 'text');
  await writeFile(text, 'not a kernel '.repeat(100));
  await refused(
    { RELEAP_GUEST_KERNEL: text },
    /RELEAP_GUEST_KERNEL=.*text: must be a readable kernel .*bzImage/,
  );
  await refused({ RELEAP_GUEST_KERNEL: dir }, /must be a readable kernel/);
});

test('modules that are no folder, or belong to no kernel, are refused', async () => {
  const RELEAP_GUEST_KERNEL = path.join(BUILD, 'kernel/vmlinuz');
  await refused({ RELEAP_GUEST_MODULES: dir }, /RELEAP_GUEST_MODULES=.*: needs RELEAP_GUEST_KERNEL/);
  await refused(
    { RELEAP_GUEST_KERNEL, RELEAP_GUEST_MODULES: path.join(dir, 'missing') },
    /RELEAP_GUEST_MODULES=.*missing: must be the absolute path of a folder/,
  );
  await refused(
    { RELEAP_GUEST_KERNEL, RELEAP_GUEST_MODULES: dir },
    /must be the absolute path of a folder such as .*VERSION/,
  );
  const empty = path.join(dir, '6.1.0-empty');
  await mkdir(empty);
  await writeFile(path.join(empty, 'modules.order'), '');
  await writeFile(path.join(empty, 'modules.builtin'), '');
  const env = { RELEAP_GUEST_KERNEL, RELEAP_GUEST_MODULES: empty };
  const agent = path.join(BUILD, 'guest/agent');
  const always = (_output, _inputs, make) => make();
  await assert.rejects(
    ensureOwnKernel(path.join(dir, 'out'), agent, [agent], always, env),
    /RELEAP_GUEST_MODULES=.*empty: kernel module virtio_mmio is neither in .* nor built in/,
  );
});

test('a kernel gets its own initramfs, and a system disk where it has modules', async () => {
  const folder = path.join(dir, 'made');
  const agent = path.join(BUILD, 'guest/agent');
  const kernel = path.join(BUILD, 'kernel/vmlinuz');
  const always = (_output, _inputs, make) => make();
  await ensureOwnKernel(folder, agent, [agent], always, { RELEAP_GUEST_KERNEL: kernel });
  const [name] = await readdir(folder);
  assert.match(name, /^[0-9a-f]{32}$/);
  assert.ok(existsSync(path.join(folder, name, 'initramfs.cpio.gz')));
  assert.equal(existsSync(path.join(folder, name, 'system.squashfs')), false);
  const version = (await readFile(path.join(BUILD, 'kernel/version'), 'utf8')).trim();
  const modules = path.join(dir, version);
  await symlink(path.join(BUILD, 'kernel/modules'), modules);
  await ensureOwnKernel(folder, agent, [agent], always, {
    RELEAP_GUEST_KERNEL: kernel,
    RELEAP_GUEST_MODULES: modules,
  });
  assert.ok(existsSync(path.join(folder, name, 'system.squashfs')));
});
