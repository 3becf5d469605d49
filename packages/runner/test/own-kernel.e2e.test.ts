import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { copyFile, mkdir, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { guestWithKernel } from '../src/machine/open-machines.ts';
import { templateKey } from '../src/template/machine-size.ts';
import { BUILD_DIR, SHAPE, testMachines } from './support/machines.ts';

const PREPARE = fileURLToPath(new URL('../../../setup/own-kernel.mjs', import.meta.url));

let dir: string;
before(async () => {
  dir = await temporaryFolder('releap-ok-');
});
after(() => rm(dir, { recursive: true, force: true }));

describe("a kernel of the operator's own", () => {
  it('is refused when it is not there, or set-up has not prepared it', async () => {
    await assert.rejects(
      guestWithKernel(dir, join(dir, 'none')),
      /RELEAP_GUEST_KERNEL=.*none cannot be read: ENOENT/,
    );
    await writeFile(join(dir, 'new'), 'kernel');
    await assert.rejects(guestWithKernel(dir, join(dir, 'new')), /new is not prepared: run the set-up/);
  });

  it('boots guests, from templates of its own', async () => {
    const version = execFileSync('cat', [join(BUILD_DIR, 'kernel/version')], { encoding: 'utf8' }).trim();
    const modules = join(dir, version);
    await symlink(join(BUILD_DIR, 'kernel/modules'), modules);
    // Another file than the default one, to every digest; the bytes behind a bzImage are not read.
    const kernel = join(dir, 'vmlinuz');
    await copyFile(join(BUILD_DIR, 'kernel/vmlinuz'), kernel);
    await writeFile(kernel, 'ours', { flag: 'a' });
    const buildDir = join(dir, 'build');
    await mkdir(buildDir);
    const script = `const [module, folder, agent, ...programs] = process.argv.slice(1);
      const { ensureOwnKernel } = await import(module);
      await ensureOwnKernel(folder, agent, programs, (output, inputs, make) => make());`;
    const env = { ...process.env, RELEAP_GUEST_KERNEL: kernel, RELEAP_GUEST_MODULES: modules };
    const args = [
      '--input-type=module',
      '-e',
      script,
      PREPARE,
      join(buildDir, 'own-kernel'),
      join(BUILD_DIR, 'guest/agent'),
      join(BUILD_DIR, 'guest/releap-ssh'),
      join(BUILD_DIR, 'guest/toolboxd'),
    ];
    execFileSync(process.execPath, args, { env, stdio: ['ignore', 'ignore', 'inherit'] });
    await using usual = await testMachines();
    const guest = await guestWithKernel(buildDir, kernel);
    await using own = await testMachines({ cacheDir: join(dir, 'cache'), guest });
    using template = await own.machines.templates.lease({ ...SHAPE, memMib: 256 });
    assert.equal(template.key, templateKey(own.platform, template.shape));
    assert.notEqual(template.key, templateKey(usual.platform, template.shape));
  });
});
