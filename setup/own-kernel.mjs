/**
 * A kernel of the operator's own for the guests, instead of the distribution's: checked, and given an initramfs. Plain
 * Node >= 18, no dependencies: set-up runs it before anything is there.
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, open, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { say, SetupError } from './command.mjs';
import { buildInitramfs, GUEST_MODULES, resolveModules } from './initramfs.mjs';
import { buildSystemDisk } from './system-disk.mjs';

/** "HdrS" of a bzImage (the kernel's Documentation/arch/x86/boot.rst), and an ELF file's first bytes. */
const BZIMAGE_AT = 0x202;
const BZIMAGE = 'HdrS';
const ELF = '\x7fELF';

/**
 * What `RELEAP_GUEST_KERNEL` and `RELEAP_GUEST_MODULES` name.
 * @param {Record<string, string | undefined>} env
 * @returns {Promise<{ kernel: string, modules?: string, sha256: string } | undefined>} undefined when no kernel is named
 * @throws {SetupError} saying which variable is wrong, with its value
 */
export async function ownKernel(env) {
  const { RELEAP_GUEST_KERNEL: kernel, RELEAP_GUEST_MODULES: modules } = env;
  if (!kernel) {
    if (modules)
      throw new SetupError(
        `RELEAP_GUEST_MODULES=${modules}: needs RELEAP_GUEST_KERNEL, whose modules they are`,
      );
    return undefined;
  }
  const wrong = (name, value, why) => new SetupError(`${name}=${value}: ${why}`);
  if (!path.isAbsolute(kernel)) throw wrong('RELEAP_GUEST_KERNEL', kernel, 'must be an absolute path');
  if (!(await isKernel(kernel).catch(() => undefined)))
    throw wrong(
      'RELEAP_GUEST_KERNEL',
      kernel,
      'must be a readable kernel for x86-64 (a bzImage such as vmlinuz, or an ELF vmlinux)',
    );
  if (modules) {
    const found = path.isAbsolute(modules) ? await stat(modules).catch(() => undefined) : undefined;
    // depmod wants the version, and the folder's name is the one place that says it.
    if (!found?.isDirectory() || !/^\d+\.\d+/.test(path.basename(modules)))
      throw wrong(
        'RELEAP_GUEST_MODULES',
        modules,
        'must be the absolute path of a folder such as /lib/modules/VERSION',
      );
  }
  const sha256 = createHash('sha256')
    .update(await readFile(kernel))
    .digest('hex');
  return { kernel, ...(modules && { modules }), sha256 };
}

async function isKernel(file) {
  const handle = await open(file);
  try {
    const bytes = Buffer.alloc(BZIMAGE_AT + BZIMAGE.length);
    const { bytesRead } = await handle.read(bytes, 0, bytes.length, 0);
    const begins = (text, at) => bytes.toString('latin1', at, at + text.length) === text;
    return bytesRead === bytes.length && (begins(BZIMAGE, BZIMAGE_AT) || begins(ELF, 0));
  } finally {
    await handle.close();
  }
}

/**
 * Prepares the kernel that the environment names, if it does: `FOLDER/<digest>` gets its initramfs, and its system disk where
 * it has modules. By digest, for services of one checkout may have different ones.
 * @param {string} folder absolute
 * @param {string} agentPath the guest agent
 * @param {string[]} programs for the system disk
 * @param {(output: string, inputs: string[], make: () => Promise<unknown>) => Promise<void>} ifInputsChanged
 */
export async function ensureOwnKernel(folder, agentPath, programs, ifInputsChanged, env = process.env) {
  const own = await ownKernel(env);
  if (own === undefined) return;
  const made = path.join(folder, own.sha256.slice(0, 32));
  const lists = ['modules.order', 'modules.builtin'].map((name) => path.join(own.modules ?? '', name));
  const parts = ['initramfs.mjs', 'system-disk.mjs', 'own-kernel.mjs'].map((name) =>
    fileURLToPath(new URL(name, import.meta.url)),
  );
  const inputs = [own.kernel, agentPath, ...programs, ...lists.filter((file) => existsSync(file)), ...parts];
  const out = path.join(made, 'initramfs.cpio.gz');
  await ifInputsChanged(out, inputs, async () => {
    say(`preparing the guests' kernel ${own.kernel}`);
    await rm(made, { recursive: true, force: true });
    await mkdir(made, { recursive: true });
    if (own.modules === undefined) await allBuiltIn(made);
    else {
      await symlink(own.modules, path.join(made, 'modules'));
      await resolveModules(made).catch((error) => {
        throw new SetupError(`RELEAP_GUEST_MODULES=${own.modules}: ${error.message}`);
      });
      await writeFile(path.join(made, 'version'), `${path.basename(own.modules)}\n`);
      await buildSystemDisk({ kernelDir: made, programs, out: path.join(made, 'system.squashfs') });
    }
    // Last: it marks the folder as complete.
    await buildInitramfs({ kernelDir: made, agentPath, out });
  });
}

/** In the words of kernels without modules. */
async function allBuiltIn(folder) {
  await mkdir(path.join(folder, 'modules'));
  const lines = GUEST_MODULES.map((name) => `kernel/${name}.ko\n`);
  await writeFile(path.join(folder, 'modules/modules.builtin'), lines.join(''));
}
