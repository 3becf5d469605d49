import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { cpus, totalmem } from 'node:os';
import { join } from 'node:path';
import {
  detectLayout,
  limitFiles,
  memoryLimit,
  memoryOfAll,
  type OomEvents,
  OPTIONAL_FILES,
  parseOomEvents,
  treeFiles,
  weightOfAll,
} from './cgroup-files.ts';
import { readKernelFile } from './kernel-file.ts';
import { REMOVE_WAIT_MS, removeFolder } from './remove-folder.ts';
import { closeUnit } from './systemd-unit.ts';
import { OF_UNIT, placeTree, removeTree, type TreePlace } from './tree-place.ts';
import type {
  CgroupLayout,
  CgroupLimits,
  CgroupUsage,
  ControlFile,
  Controller,
  TreeLimits,
} from './cgroup-files.ts';

const KILLED_PAUSE_MS = 2;
const NAME = /^[A-Za-z0-9_.-]{1,100}$/;

/**
 * The cgroups of one service's micro-VMs: children of one folder a hierarchy, whose name is made from the service's
 * home, so that two services on a machine never touch each other's. They lie apart from the service's own, because
 * whatever stops the service (systemd, a container's init) kills what is below that.
 */
export class CgroupTree {
  readonly layout: CgroupLayout;
  readonly #parents: Map<Controller, string>;
  readonly #folders: string[];
  readonly #ioMax: readonly string[];
  readonly #unit: string | undefined;

  private constructor(layout: CgroupLayout, { parents, unit }: TreePlace, ioMax: readonly string[]) {
    this.layout = layout;
    this.#parents = parents;
    this.#folders = [...new Set(parents.values())];
    this.#ioMax = ioMax;
    this.#unit = unit;
  }

  /** Name of the folder of a service's cgroups in each hierarchy, less `.service` where it is a unit's. @param home as for `open` */
  static nameOf(home: string): string {
    return `releap-${createHash('sha256').update(home).digest('hex').slice(0, 12)}`;
  }

  /**
   * @param home the service's home folder; its absolute path names the cgroups
   * @param limits of all of its cgroups together. Default: what the service leaves of the machine
   * @throws when the controllers cannot be had, naming the file that refused
   */
  static async open(home: string, limits: TreeLimits = limitsOfMachine()): Promise<CgroupTree> {
    const layout = await detectLayout();
    const name = CgroupTree.nameOf(home);
    const place = await placeTree(layout, name, `Releap: control groups of ${home}`, limits);
    const tree = new CgroupTree(layout, place, limits.ioMax ?? []);
    try {
      if (place.unit === undefined) await tree.#limit(limits);
      await tree.#tryIoMax();
    } catch (error) {
      await tree.abandon();
      throw error;
    }
    return tree;
  }

  async #limit(limits: TreeLimits): Promise<void> {
    await this.#write('', treeFiles(this.layout.version, limits)).catch((error: NodeJS.ErrnoException) => {
      // Version 1 refuses a limit below what VMs of an earlier run use. The next start sets it.
      if (this.layout.version === 2 || error.code !== 'EBUSY') throw error;
    });
  }

  /** Writes the limits of a disk as they are by default, as the kernel may have none, or not for this disk. */
  async #tryIoMax(): Promise<void> {
    for (const line of this.#ioMax) {
      const disk = line.split(' ', 1)[0];
      const folder = this.#parents.get('io');
      const error =
        folder === undefined
          ? 'this machine has version 1'
          : await writeFile(join(folder, 'io.max'), `${disk} rbps=max`).then(
              () => undefined,
              ({ message }: Error) => message,
            );
      if (error === undefined) continue;
      throw new Error(
        `what sandboxes read from disk ${disk} and write to it cannot be limited: that takes control groups of version 2 with the io ` +
          `controller (${error}). Unset RELEAP_SANDBOX_DISK_MIB_S and RELEAP_SANDBOX_DISK_IOPS`,
      );
    }
  }

  /** Makes a cgroup, or changes the limits of one. Returns the files to write a pid into to join it. */
  async create(name: string, limits: CgroupLimits): Promise<string[]> {
    checkName(name);
    await Promise.all(this.#folders.map((folder) => mkdir(join(folder, name), { recursive: true })));
    await this.setLimits(name, limits);
    return this.#folders.map((folder) => join(folder, name, 'cgroup.procs'));
  }

  async setLimits(name: string, limits: CgroupLimits): Promise<void> {
    checkName(name);
    await this.#write(name, limitFiles(this.layout.version, { ioMax: this.#ioMax, ...limits }));
  }

  async #write(name: string, files: readonly ControlFile[]): Promise<void> {
    for (const { controller, file, value } of files) {
      const parent = this.#parents.get(controller);
      if (parent === undefined) continue;
      // Not created where the kernel does not have it: cgroupfs refuses that.
      await writeFile(join(parent, name, file), value).catch((error: NodeJS.ErrnoException) => {
        if (!OPTIONAL_FILES.has(file) || (error.code !== 'ENOENT' && error.code !== 'EACCES')) throw error;
      });
    }
  }

  /** Changes the most memory that a cgroup may have, leaving its other limits. */
  async setMemoryLimit(name: string, mib: number): Promise<void> {
    checkName(name);
    const parent = this.#parents.get('memory');
    const { file, value } = memoryLimit(this.layout.version, mib);
    if (parent !== undefined) await writeFile(join(parent, name, file), value);
  }

  /** What a cgroup has used, or undefined when there is none of that name. */
  usage(name: string): CgroupUsage | undefined {
    const cpuMicros = this.cpuMicros(name);
    const memory = this.#read(
      name,
      'memory',
      this.layout.version === 2 ? 'memory.current' : 'memory.usage_in_bytes',
    );
    if (cpuMicros === undefined || memory === undefined) return undefined;
    return { cpuMicros, memoryBytes: Number(memory) };
  }

  /** CPU time of a cgroup, as in `usage`. */
  cpuMicros(name: string): number | undefined {
    if (this.layout.version === 1) {
      const nanos = this.#read(name, 'cpuacct', 'cpuacct.usage');
      return nanos === undefined ? undefined : Math.floor(Number(nanos) / 1000);
    }
    const stat = this.#read(name, 'cpu', 'cpu.stat');
    return stat === undefined ? undefined : Number(/^usage_usec (\d+)$/m.exec(stat)?.[1] ?? 0);
  }

  /** Kills for memory of processes in a cgroup, or undefined when there is none of that name. */
  oomEvents(name: string): OomEvents | undefined {
    const file = this.layout.version === 2 ? 'memory.events' : 'memory.oom_control';
    const text = this.#read(name, 'memory', file);
    return text === undefined ? undefined : parseOomEvents(text);
  }

  /** A hierarchy without the controller counts nothing. */
  #read(name: string, controller: Controller, file: string): string | undefined {
    checkName(name);
    const parent = this.#parents.get(controller);
    return parent === undefined ? '0' : readKernelFile(join(parent, name, file));
  }

  /** Pids in a cgroup; none when there is no such cgroup. */
  async processes(name: string): Promise<number[]> {
    checkName(name);
    const pids = new Set<number>();
    for (const folder of this.#folders) {
      const text = await readFile(join(folder, name, 'cgroup.procs'), 'utf8').catch(() => '');
      for (const line of text.split('\n')) if (line !== '') pids.add(Number(line));
    }
    return [...pids];
  }

  /**
   * Ends everything in a cgroup and removes it. Whatever a crash of ours has left in it is ours to end, recorded or
   * not: this is how no VMM is ever lost. Repeatable.
   */
  async destroy(name: string): Promise<void> {
    for (let waitedMs = 0; ; waitedMs += KILLED_PAUSE_MS) {
      const pids = await this.processes(name);
      if (pids.length === 0) break;
      if (waitedMs >= REMOVE_WAIT_MS) {
        throw new Error(
          `processes ${pids.join(', ')} of cgroup ${name} survive SIGKILL (stuck in the kernel?)`,
        );
      }
      if (this.layout.version === 2) await this.#killAll(name);
      else this.#killEach(name, pids);
      await new Promise((resolve) => setTimeout(resolve, KILLED_PAUSE_MS));
    }
    await this.remove(name);
  }

  /** Kills what is in a cgroup, but for one process. */
  async kill(name: string, except: number): Promise<void> {
    this.#killEach(
      name,
      (await this.processes(name)).filter((pid) => pid !== except),
    );
  }

  /** The kernel does it for all at once, those that are being born included (cgroup.kill, Linux 5.14). */
  async #killAll(name: string): Promise<void> {
    for (const folder of this.#folders) {
      await writeFile(join(folder, name, 'cgroup.kill'), '1').catch(async (error: NodeJS.ErrnoException) => {
        if (error.code !== 'ENOENT' && error.code !== 'EACCES') throw error;
        this.#killEach(name, await this.processes(name));
      });
    }
  }

  /** One whose pid is another's by now is in another cgroup: looked at right before. */
  #killEach(name: string, pids: readonly number[]): void {
    for (const pid of pids) {
      try {
        const groups = readFileSync(`/proc/${pid}/cgroup`, 'utf8').split('\n');
        if (groups.some((line) => line.endsWith(`/${name}`))) process.kill(pid, 'SIGKILL');
      } catch {
        // Gone by itself.
      }
    }
  }

  /** Removes a cgroup; its processes must be dead, and are given a moment to be gone. Repeatable. */
  async remove(name: string): Promise<void> {
    checkName(name);
    await Promise.all(this.#folders.map((folder) => removeFolder(join(folder, name))));
  }

  /** Names of all cgroups of this service, also those a crash has left. */
  async list(): Promise<string[]> {
    const names = new Set<string>();
    for (const folder of this.#folders) {
      for (const entry of await readdir(folder, { withFileTypes: true })) {
        if (entry.isDirectory() && entry.name !== OF_UNIT) names.add(entry.name);
      }
    }
    return [...names];
  }

  /** The start of the service has failed: as `close`, unless cgroups of an earlier run are left. */
  async abandon(): Promise<void> {
    if ((await this.list()).length === 0) await this.close();
  }

  /** Removes the service's own folders, once all in them are gone. */
  async close(): Promise<void> {
    if (this.#unit !== undefined) await closeUnit(this.#unit);
    await Promise.all(this.#folders.map((folder) => removeTree(folder)));
  }
}

/** What the service leaves of the machine. */
export function limitsOfMachine(): TreeLimits {
  return { cores: weightOfAll(cpus().length), memoryMib: memoryOfAll(totalmem() / 2 ** 20) };
}

function checkName(name: string): void {
  if (!NAME.test(name) || name === '.' || name === '..')
    throw new Error(`not a cgroup name: ${JSON.stringify(name)}`);
}
