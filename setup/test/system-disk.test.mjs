import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { readModule } from '../initramfs.mjs';
import { buildSystemDisk } from '../system-disk.mjs';

const KERNEL = fileURLToPath(new URL('../../build/kernel', import.meta.url));

let dir;
before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'releap-system-'));
});
after(async () => {
  await rm(dir, { recursive: true, force: true });
});

it('the system disk has uncompressed modules and their dependencies, and is reproducible', async () => {
  const kernelDir = join(dir, 'kernel');
  const version = (await readFile(join(KERNEL, 'version'), 'utf8')).trim();
  const modules = join(kernelDir, 'modules/kernel');
  await mkdir(modules, { recursive: true });
  await writeFile(join(kernelDir, 'version'), `${version}\n`);
  await writeFile(join(kernelDir, 'modules/modules.order'), 'kernel/virtiofs.ko.gz\nkernel/fuse.ko\n');
  await writeFile(join(kernelDir, 'modules/modules.builtin'), '');
  const find = (name) =>
    execFileSync('find', [join(KERNEL, 'modules'), '-name', `${name}.ko*`], { encoding: 'utf8' }).trim();
  const [fuse, virtiofs] = [find('fuse'), find('virtiofs')];
  // As in Debian 12, and as in others.
  await writeFile(join(modules, 'fuse.ko'), await readModule(fuse));
  await writeFile(join(modules, 'virtiofs.ko.gz'), gzipSync(await readModule(virtiofs)));
  const out = join(dir, 'system.squashfs');
  const programs = [join(dir, 'releap-ssh'), join(dir, 'toolboxd')];
  for (const program of programs) await writeFile(program, 'program', { mode: 0o600 });
  const first = await buildSystemDisk({ kernelDir, programs, out });
  const second = await buildSystemDisk({ kernelDir, programs, out });
  assert.deepEqual(second, first);
  const content = (path) => execFileSync('unsquashfs', ['-cat', out, path]);
  assert.equal(content('layout').toString(), '1\n');
  for (const name of ['releap-ssh', 'toolboxd'])
    assert.match(
      execFileSync('unsquashfs', ['-ll', out, `root/usr/lib/releap/${name}`], { encoding: 'utf8' }),
      new RegExp(`^-rwxr-xr-x .* 7 .*${name}$`, 'm'),
    );
  for (const folder of ['root/lib/modules', 'root/usr/lib/modules']) {
    assert.match(
      content(`${folder}/${version}/modules.dep`).toString(),
      /^kernel\/virtiofs\.ko: kernel\/fuse\.ko$/m,
    );
    assert.ok(content(`${folder}/${version}/kernel/virtiofs.ko`).equals(await readModule(virtiofs)));
  }
});
