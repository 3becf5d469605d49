/**
 * Builds the system disk: a read-only file system that every micro-VM has beside its sandbox's own disks, with what is
 * ours and too large for the initramfs. Plain Node >= 18, no dependencies: set-up runs it before anything is there.
 *
 * Layout 1:
 *   layout                        the number of this layout
 *   root/                         the lowest layer of every sandbox's root file system:
 *   root/lib/modules/VERSION/     all modules of the guests' kernel, uncompressed, with what `depmod` writes of them
 *   root/usr/lib/modules/VERSION/ the same, for images whose /lib is a link to usr/lib
 *   root/usr/lib/releap/          programs: releap-ssh, which the SSH gateway starts in sandboxes (guest/ssh), and toolboxd, the
 *                                 toolbox daemon (guest/toolbox), which the agent starts
 */
import { createHash } from 'node:crypto';
import {
  chmod,
  copyFile,
  link,
  mkdir,
  mkdtemp,
  open,
  readdir,
  readFile,
  rename,
  rm,
  writeFile,
} from 'node:fs/promises';
import path from 'node:path';
import { run } from './command.mjs';
import { readModule } from './initramfs.mjs';

const SYSTEM_LAYOUT = 1;

/** Equal files in, equal bytes out; a level that takes seconds. */
const SQUASHFS =
  '-noappend -no-progress -quiet -no-xattrs -no-exports -all-root -all-time 0 -mkfs-time 0 -comp zstd -Xcompression-level 6'.split(
    ' ',
  );

/** Beside the modules: `depmod` reads the order and what is built in. */
const LISTS = /^modules\.(?:order|builtin|builtin\.modinfo)$/;
const MODULE = /^(.+\.ko)(?:\.gz|\.xz|\.zst)?$/;

/**
 * Writes the system disk and publishes it by rename. Equal inputs give equal bytes.
 * @param {{kernelDir: string, programs: readonly string[], out: string}} options `kernelDir` holds `modules/` and `version`;
 *   programs keep their file names
 * @returns {Promise<{sha256: string, bytes: number}>}
 */
export async function buildSystemDisk({ kernelDir, programs, out }) {
  const version = (await readFile(path.join(kernelDir, 'version'), 'utf8')).trim();
  await mkdir(path.dirname(out), { recursive: true });
  const stage = await mkdtemp(path.join(path.dirname(out), 'system-'));
  const partial = `${out}.${process.pid}.partial`;
  try {
    const disk = path.join(stage, 'disk');
    const modules = path.join(disk, 'root/lib/modules', version);
    await copyModules(path.join(kernelDir, 'modules'), modules);
    await run('depmod', ['-b', path.join(disk, 'root'), version]);
    await linkTree(path.join(disk, 'root/lib'), path.join(disk, 'root/usr/lib'));
    const folder = path.join(disk, 'root/usr/lib/releap');
    await mkdir(folder);
    for (const program of programs) {
      const copy = path.join(folder, path.basename(program));
      await copyFile(program, copy);
      await chmod(copy, 0o755);
    }
    await writeFile(path.join(disk, 'layout'), `${SYSTEM_LAYOUT}\n`);
    await run('mksquashfs', [disk, partial, ...SQUASHFS]);
    const bytes = await syncedContent(partial);
    await rename(partial, out);
    return { sha256: createHash('sha256').update(bytes).digest('hex'), bytes: bytes.length };
  } finally {
    await rm(stage, { recursive: true, force: true });
    await rm(partial, { force: true });
  }
}

/** Without their compression: guests need no program to undo it, and the disk is compressed as a whole. */
async function copyModules(from, to) {
  await mkdir(to, { recursive: true });
  for (const entry of await readdir(from, { withFileTypes: true })) {
    const source = path.join(from, entry.name);
    if (entry.isDirectory()) {
      await copyModules(source, path.join(to, entry.name));
      continue;
    }
    const module = MODULE.exec(entry.name)?.[1];
    if (module !== undefined) await writeFile(path.join(to, module), await readModule(source));
    // The lists name compressed files, where those are.
    else if (LISTS.test(entry.name))
      await writeFile(
        path.join(to, entry.name),
        (await readFile(source, 'latin1')).replace(/\.ko\.(?:gz|xz|zst)$/gm, '.ko'),
        'latin1',
      );
  }
}

async function linkTree(from, to) {
  await mkdir(to, { recursive: true });
  for (const entry of await readdir(from, { withFileTypes: true })) {
    const [source, target] = [path.join(from, entry.name), path.join(to, entry.name)];
    if (entry.isDirectory()) await linkTree(source, target);
    else await link(source, target);
  }
}

async function syncedContent(file) {
  const handle = await open(file, 'r');
  try {
    await handle.sync();
    return await handle.readFile();
  } finally {
    await handle.close();
  }
}
