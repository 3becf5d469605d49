/** gVisor's `runsc` (Debian's package) with the same root file system, for comparison. */
import { execFile } from 'node:child_process';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const DEADLINE_MS = 60_000;
/** `ptrace` is the one platform that needs nothing of the machine; there is no network and no cgroup to set up. */
const FLAGS = ['--platform=ptrace', '--network=none', '--ignore-cgroups'];

export class Gvisor implements AsyncDisposable {
  readonly #folder: string;
  readonly #flags: string[];
  #count = 0;

  private constructor(folder: string) {
    this.#folder = folder;
    this.#flags = [...FLAGS, `--root=${join(folder, 'state')}`];
  }

  /**
   * @param folder empty
   * @param rootImage squashfs that is unpacked into the bundles
   * @throws when `runsc` cannot start a container on this machine, with what it said
   */
  static async prepare(folder: string, rootImage: string): Promise<Gvisor> {
    const gvisor = new Gvisor(folder);
    const root = join(folder, 'rootfs');
    await run('unsquashfs', ['-quiet', '-no-progress', '-dest', root, rootImage], { timeout: DEADLINE_MS });
    for (const [name, args] of Object.entries(BUNDLES)) {
      await mkdir(join(folder, name));
      await writeFile(join(folder, name, 'config.json'), JSON.stringify(bundle(root, args)));
    }
    await gvisor.runTrue();
    return gvisor;
  }

  /** A container that is `true`: from nothing until it has ended. */
  async runTrue(): Promise<void> {
    await this.#runsc('run', '--bundle', join(this.#folder, 'once'), this.#name());
  }

  /** A container that stays, and `true` run in it, as a sandbox does. @returns its name, for `remove` */
  async createAndRun(): Promise<string> {
    const name = this.#name();
    await this.#runsc('run', '--detach', '--bundle', join(this.#folder, 'stays'), name);
    await this.#runsc('exec', name, '/bin/sh', '-c', 'true');
    return name;
  }

  async remove(name: string): Promise<void> {
    await this.#runsc('delete', '--force', name);
  }

  #name(): string {
    return `bench-${process.pid}-${this.#count++}`;
  }

  async #runsc(...args: string[]): Promise<void> {
    try {
      await this.#start(args);
    } catch (error) {
      const { message, stderr } = error as Error & { stderr?: string };
      throw new Error(`${message} ${(stderr ?? '').slice(-1000)}`, { cause: error });
    }
  }

  async #start(args: string[]): Promise<void> {
    // A detached container keeps its output open, and its reader would wait for its end.
    const detached = args.includes('--detach');
    if (!detached) {
      await run('runsc', [...this.#flags, ...args], { timeout: DEADLINE_MS });
      return;
    }
    const log = join(this.#folder, 'stays.log');
    const line = ['exec "$@" >"$0" 2>&1', log, 'runsc', ...this.#flags, ...args];
    await run('/bin/sh', ['-c', ...line], { timeout: DEADLINE_MS });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const { stdout } = await run('runsc', [...this.#flags, 'list', '--quiet'], { timeout: DEADLINE_MS });
    for (const name of stdout.split('\n').filter(Boolean)) await this.remove(name);
  }
}

const BUNDLES = { once: ['/bin/sh', '-c', 'true'], stays: ['/bin/sleep', '86400'] };

/** An OCI bundle's config.json, as `runsc spec` writes it, with another root and other arguments. */
function bundle(root: string, args: string[]): object {
  return {
    ociVersion: '1.0.0',
    process: {
      user: { uid: 0, gid: 0 },
      args,
      env: ['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'],
      cwd: '/',
    },
    root: { path: root, readonly: false },
    hostname: 'bench',
    mounts: [
      { destination: '/proc', type: 'proc', source: 'proc' },
      { destination: '/dev', type: 'tmpfs', source: 'tmpfs' },
      { destination: '/sys', type: 'sysfs', source: 'sysfs', options: ['nosuid', 'noexec', 'nodev', 'ro'] },
    ],
    linux: { namespaces: ['pid', 'network', 'ipc', 'uts', 'mount'].map((type) => ({ type })) },
  };
}
