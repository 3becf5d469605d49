import { mkdir, readdir, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Architecture } from '@releap/contract/architecture';
import type { Logger } from 'pino';
import { ARCHITECTURE } from '../../host/architecture.ts';
import { linkOrCopy } from '../../disk/disk-chain.ts';
import type { Vmm, VmmVersions } from '../driver.ts';
import type { Command } from '../jail.ts';

const VERSION = /^\d+\.\d+\.\d+$/;
/** Files that name a VMM version: the record of a VM that may run, and of a suspend image. */
const RECORDS: ReadonlySet<string> = new Set(['vm.json', 'paused.json']);
/** Depth of such a file below the folders of VMs, snapshots and quarantined entries. */
const RECORDS_DEPTH = 4;

/**
 * The command that starts the VMM in a folder. It executes the dynamic loader with the library path as an argument: `RPATH`
 * would have to be written into the files, and `LD_LIBRARY_PATH` would not choose the loader, which must be of the same
 * build as the C library. There is no shell, so that QEMU gets exactly what the jail sets (ignored signals, limits).
 * @param folder path in the mount namespace of the process that executes the command
 */
export function vmmCommand(folder: string, { vmm, loader }: Architecture = ARCHITECTURE): Command {
  const [lib, program] = [join(folder, 'lib'), join(folder, 'bin', vmm)];
  return {
    program: join(lib, loader),
    args: ['--inhibit-cache', '--library-path', lib, '--argv0', vmm, program, '-L', join(folder, 'firmware')],
    env: { QEMU_MODULE_DIR: join(folder, 'modules') },
  };
}

/** Reads version and package of a folder with a QEMU, its libraries and its firmware, as set-up unpacks it (setup/qemu.mjs). */
async function readVmm(folder: string): Promise<(Vmm & { package: string }) | undefined> {
  const text = async (name: string): Promise<string> =>
    await readFile(join(folder, name), 'utf8').then(
      (content) => content.trim(),
      () => '',
    );
  const [version, packageName] = await Promise.all([text('version'), text('package')]);
  return VERSION.test(version) ? { version, folder, package: packageName } : undefined;
}

/** The newest VMM that set-up has unpacked; undefined when there is none. */
export async function unpackedVmm(buildDir: string): Promise<Vmm | undefined> {
  return await readVmm(join(buildDir, 'qemu/newest'));
}

/**
 * The VMMs of one service. New VMs run with the newest one. Saved memory is resumed with the VMM that saved it, which stays
 * in the folder while something needs it, whatever is installed or upgraded meanwhile.
 */
export class VmmStore implements VmmVersions {
  readonly newest: Vmm;
  readonly #present: ReadonlyMap<string, Vmm>;

  private constructor(newest: Vmm, present: ReadonlyMap<string, Vmm>) {
    this.newest = newest;
    this.#present = present;
  }

  /**
   * Adds what set-up has unpacked, and removes versions that nothing needs any more.
   * @param options.folder absolute; it has a folder for each version
   * @param options.buildDir build folder of set-up
   * @param options.records absolute folders of VMs and saved memory
   */
  static async open(options: {
    folder: string;
    buildDir: string;
    records: readonly string[];
    log: Logger;
  }): Promise<VmmStore> {
    const { folder, buildDir, log } = options;
    const newest = await readVmm(join(buildDir, 'qemu/newest'));
    if (newest === undefined)
      throw new Error(`there is no VMM in ${join(buildDir, 'qemu')}: run the set-up (npm start) first`);
    await mkdir(folder, { recursive: true, mode: 0o700 });
    const needed = new Set<string>();
    for (const records of options.records) await addNeeded(needed, records, RECORDS_DEPTH);
    await publish(newest, join(buildDir, 'qemu/newest'), folder);
    const present = new Map<string, Vmm>();
    for (const name of await readdir(folder)) {
      const vmm = await readVmm(join(folder, name));
      if (vmm !== undefined && name === vmm.version && (name === newest.version || needed.has(name))) {
        present.set(name, vmm);
      } else {
        if (vmm !== undefined) log.info({ version: name }, 'removing a VMM that nothing needs any more');
        await rm(join(folder, name), { recursive: true, force: true });
      }
    }
    for (const version of needed) {
      if (compatible(present, version) === undefined)
        log.error({ version }, 'the VMM that saved a sandbox is missing; its memory cannot be resumed');
    }
    const own = present.get(newest.version);
    if (own === undefined) throw new Error(`the VMM ${newest.version} is not in ${folder}`);
    return new VmmStore(own, present);
  }

  /**
   * The VMM that resumes what `version` has saved: the same version, or another patch release of its series, which does not
   * change the format of a saved state.
   */
  forState(version: string): Vmm | undefined {
    return compatible(this.#present, version);
  }

  get versions(): string[] {
    return [...this.#present.keys()];
  }
}

function compatible(present: ReadonlyMap<string, Vmm>, version: string): Vmm | undefined {
  const series = (text: string): string => text.split('.').slice(0, 2).join('.');
  return present.get(version) ?? [...present.values()].find((vmm) => series(vmm.version) === series(version));
}

/** Copies a VMM to `folder`, unless the same build of it is there. Processes that run the former build are not affected. */
async function publish(
  vmm: { version: string; package: string },
  from: string,
  folder: string,
): Promise<void> {
  const target = join(folder, vmm.version);
  if ((await readVmm(target))?.package === vmm.package) return;
  const partial = `${target}.partial`;
  await rm(partial, { recursive: true, force: true });
  await linkTree(from, partial);
  await rm(target, { recursive: true, force: true });
  await rename(partial, target);
}

async function linkTree(from: string, to: string): Promise<void> {
  await mkdir(to, { mode: 0o755 });
  for (const entry of await readdir(from, { withFileTypes: true })) {
    const [source, target] = [join(from, entry.name), join(to, entry.name)];
    await (entry.isDirectory() ? linkTree(source, target) : linkOrCopy(source, target));
  }
}

/** @throws when a record cannot be read: a VMM that may be needed must not be removed */
async function addNeeded(needed: Set<string>, folder: string, depth: number): Promise<void> {
  const entries = await readdir(folder, { withFileTypes: true }).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [];
    throw error;
  });
  for (const entry of entries) {
    const path = join(folder, entry.name);
    if (entry.isDirectory() && depth > 1) await addNeeded(needed, path, depth - 1);
    else if (entry.isFile() && RECORDS.has(entry.name)) {
      const version = await recordedVersion(path);
      if (version !== undefined) needed.add(version);
    }
  }
}

async function recordedVersion(path: string): Promise<string | undefined> {
  try {
    const { vmm } = JSON.parse(await readFile(path, 'utf8')) as { vmm?: unknown };
    return typeof vmm === 'string' && VERSION.test(vmm) ? vmm : undefined;
  } catch (error) {
    // A truncated record names no version, and nothing can be resumed from it.
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}
