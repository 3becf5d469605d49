import { spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { HOSTD } from '../../host/hostd.ts';
import type { CgroupTree } from '../../cgroup/cgroup-tree.ts';
import { JAIL_FOLDER, jailedModule } from '../../process/jailed-module.ts';
import { identifyProcess, isAlive, killProcess, type ProcessIdentity } from '../../vmm/process-identity.ts';

const NETD = new URL('../../../../netd/', import.meta.url);
/** Far more than it needs for what it may hold at once; a leak ends in a restart and not in a host without memory. */
const HEAP_MAX_MIB = 256;
/** What it allocates dies young, a packet at a time; the default lets that grow to 48 MiB before it is collected. */
const YOUNG_MAX_MIB = 2;
const END_DEADLINE_MS = 10_000;
/** Of the whole process: its heap, the buffers of its connections and the code. One that needs more is killed, and started again. */
const MEMORY_MAX_MIB = 1024;
/** It has a user of its own. Node.js needs a dozen. */
const THREADS_MAX = 128;
/** Two for each connection. */
const FILES_MAX = 65_536;
/** It writes to its log alone. */
const FILE_MAX_BYTES = 64 * 1024 * 1024;
/** hostd gives the command its socket as this one. */
export const LISTENING_DESCRIPTOR = '3';

/** Of the helpers that this runner would start. */
export function netdVersion(): string {
  const manifest = JSON.parse(readFileSync(new URL('package.json', NETD), 'utf8')) as { version: string };
  return manifest.version;
}

export interface HelperProgram {
  name: string;
  /** In the package of netd. */
  file: string;
  /** After the path of its socket. */
  args: readonly string[];
  /** Address of the host of a listening socket that it finds as `LISTENING_DESCRIPTOR`. */
  listenAddress?: string;
  /** A folder with sockets besides its own: `SHARED_FOLDER` inside. It makes them there, or only connects to them. */
  shared?: { folder: string; access: 'write' | 'read' };
}

/** Where a helper finds its shared folder. */
export const SHARED_FOLDER = '/shared';

/**
 * A process without privileges that serves sandboxes' traffic: netd, the interceptor or the store proxy. It is no child of the runner,
 * so that it outlives runners. Its memory is in no core dump. It has a root and a control group of its own, and a filter of system calls.
 */
export class HelperProcess {
  readonly socketPath: string;
  readonly #dir: string;
  readonly #program: HelperProgram;
  readonly #record: string;
  readonly #cgroups: CgroupTree;

  /** @param dir a folder of its own. @param cgroups where it gets one of its name */
  constructor(dir: string, program: HelperProgram, cgroups: CgroupTree) {
    this.#cgroups = cgroups;
    this.#dir = dir;
    this.#program = program;
    this.socketPath = join(dir, `${program.name}.sock`);
    this.#record = join(dir, `${program.name}.json`);
  }

  /** The one that runs, by our own record: what it says of its process is not believed. */
  async running(): Promise<ProcessIdentity | undefined> {
    const text = await readFile(this.#record, 'utf8').catch(() => '');
    try {
      const identity = JSON.parse(text) as ProcessIdentity;
      return isAlive(identity) ? identity : undefined;
    } catch {
      return undefined;
    }
  }

  /** Starts a new one, in the place of one that may still run. It listens some moments later. */
  async start(): Promise<ProcessIdentity> {
    await this.kill();
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    const { name, file, args, listenAddress, shared } = this.#program;
    const cpus = availableParallelism();
    const groups = await this.#cgroups.create(name, {
      cpu: 1,
      cpuMax: cpus,
      memoryMib: MEMORY_MAX_MIB,
      pids: THREADS_MAX,
    });
    const nodeOptions = [
      `--max-old-space-size=${HEAP_MAX_MIB}`,
      `--max-semi-space-size=${YOUNG_MAX_MIB}`,
      '--enable-source-maps',
    ];
    const jailed = await jailedModule(fileURLToPath(new URL(file, NETD)), nodeOptions, {
      folder: this.#dir,
      network: true,
      fileMax: FILE_MAX_BYTES,
      filesMax: FILES_MAX,
      threadsMax: THREADS_MAX,
      extra: [
        '--unix',
        ...groups.flatMap((group) => ['--cgroup', group]),
        ...(shared === undefined ? [] : [`--${shared.access}`, `${shared.folder}=${SHARED_FOLDER}`]),
      ],
      args: [join(JAIL_FOLDER, basename(this.socketPath)), ...args],
    });
    const command = [jailed.program, ...jailed.args];
    const [tool = '', ...rest] =
      listenAddress === undefined ? command : [HOSTD, 'listen-transparent', listenAddress, '--', ...command];
    const log = openSync(join(this.#dir, `${name}.log`), 'w', 0o600);
    try {
      const child = spawn(tool, rest, {
        detached: true,
        cwd: '/',
        stdio: ['ignore', log, log],
        env: {
          PATH: process.env['PATH'] ?? '/usr/sbin:/usr/bin:/sbin:/bin',
          LC_ALL: 'C',
          ...jailed.env,
        },
      });
      child.unref();
      if (child.pid === undefined) {
        const [error] = await new Promise<[Error]>((resolve) => child.once('error', (err) => resolve([err])));
        throw new Error(`${name} could not be started: ${error.message}`);
      }
      const identity = identifyProcess(child.pid);
      await writeFile(`${this.#record}.new`, JSON.stringify(identity), { mode: 0o600 });
      await rename(`${this.#record}.new`, this.#record);
      return identity;
    } finally {
      closeSync(log);
    }
  }

  /** The one that runs is on its own from now on: the next one takes its place beside it. @returns what it was */
  async release(): Promise<ProcessIdentity | undefined> {
    const running = await this.running();
    await rm(this.#record, { force: true });
    return running;
  }

  /** Ends what runs beside the one that is recorded: no runner can send it releases any more. */
  async killOthers(): Promise<void> {
    await this.#cgroups.kill(this.#program.name, (await this.running())?.pid ?? 0);
  }

  /** Resolves when none runs any more: everything it listened at is closed. */
  async kill(): Promise<void> {
    // One that our record does not know (a runner was killed as it started it) ends when its socket goes.
    await rm(this.socketPath, { force: true });
    const running = await this.running();
    if (running !== undefined) await killProcess(running, END_DEADLINE_MS);
  }

  /** As `kill`, and removes its files. */
  async remove(): Promise<void> {
    await this.kill();
    await this.#cgroups.destroy(this.#program.name);
    await rm(this.#dir, { recursive: true, force: true });
  }

  /** What it wrote before it ended, for people. */
  async lastOutput(): Promise<string> {
    const text = await readFile(join(this.#dir, `${this.#program.name}.log`), 'utf8').catch(() => '');
    return text.trim().slice(-2_000);
  }
}
