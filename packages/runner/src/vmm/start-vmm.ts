import type { ChildProcess } from 'node:child_process';
import { open, readFile } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { commandLine } from './command-line.ts';
import type { MachineOptions } from './command-line.ts';
import { launchVmm } from './jail.ts';
import type { LaunchOptions } from './jail.ts';
import { JAILED } from './places.ts';
import { identifyProcess } from './process-identity.ts';
import type { ProcessIdentity } from './process-identity.ts';
import type { Vmm } from './vmm-store.ts';

const OUTPUT_TAIL_BYTES = 2_000;
/** sockaddr_un(7): 108 bytes with the terminator. */
const SOCKET_PATH_MAX = 107;

export interface StartVmOptions {
  vmm: Vmm;
  machine: Omit<MachineOptions, 'vmmVersion' | 'append' | 'name' | 'owner' | 'places'>;
  /** A kernel to boot; without one the VMM waits for a state. */
  boot?: { kernel: string; initramfs: string; append: string };
  /** Open file of the guest's memory; for writing when it is shared. */
  memoryFd: number;
  /** Open file of the state that it is to load. */
  stateFd?: number;
  /** Exists already; owned by root and closed to others. Sockets and the VMM's own output land here. */
  dir: string;
  /** What the VMM is shut into, below `dir`, and whom it becomes. */
  jail: { root: string; uid: number; gid: number };
  netns: string;
  tap: string;
  cgroupProcs: string[];
  fileMaxMib: number;
  onConsole?: ((chunk: Buffer) => void) | undefined;
  log: Logger;
}

/** A VMM that was started a moment ago, and may be about to fail. */
export interface StartedVmm {
  child: ChildProcess;
  identity: ProcessIdentity;
  /** How it has ended, once it has. */
  fate: { ended?: string };
}

/** Opens what a VMM needs and starts it. @throws when it cannot be started at all */
export async function startVmm(options: StartVmOptions): Promise<StartedVmm> {
  const { vmm, machine, boot, dir, jail } = options;
  checkSocketPath(dir);
  await using files = new OpenFiles();
  const system = machine.hardware.system;
  const child = launchVmm({
    vmmFolder: vmm.folder,
    args: commandLine({
      ...machine,
      vmmVersion: vmm.version,
      append: boot?.append,
      name: dir,
      owner: jail,
      places: JAILED,
    }),
    withKvm: machine.accelerator === 'kvm',
    root: jail.root,
    socketDir: dir,
    netns: options.netns,
    tap: options.tap,
    cgroupProcs: options.cgroupProcs,
    fileMaxMib: options.fileMaxMib,
    outputFd: await files.open(join(dir, 'vmm.log'), 'a'),
    files: {
      memory: options.memoryFd,
      ...(options.stateFd !== undefined && { state: options.stateFd }),
      ...(system && { system: await files.open(system.path, 'r') }),
      ...(boot && (await files.openBoth(boot))),
    } satisfies LaunchOptions['files'],
  });
  const fate: StartedVmm['fate'] = {};
  child.once('exit', (code, signal) => {
    fate.ended = signal === null ? `exit code ${code}` : `signal ${signal}`;
  });
  child.once('error', (error) => {
    fate.ended = error.message;
  });
  if (child.pid === undefined) throw new Error('the VMM could not be started: hostd is missing');
  return { child, identity: identifyProcess(child.pid), fate };
}

/** Files that a child process inherits; closed here when it has been started, or has not. */
class OpenFiles implements AsyncDisposable {
  readonly #files: FileHandle[] = [];

  async open(path: string, flags: 'a' | 'r'): Promise<number> {
    const file = await open(path, flags, 0o600);
    this.#files.push(file);
    return file.fd;
  }

  async openBoth({ kernel, initramfs }: { kernel: string; initramfs: string }) {
    return { kernel: await this.open(kernel, 'r'), initramfs: await this.open(initramfs, 'r') };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#files.map((file) => file.close()));
  }
}

/** The end of what a VMM printed, on one line. */
export async function lastWords(dir: string): Promise<string> {
  const text = await readFile(join(dir, 'vmm.log'), 'utf8').catch(() => '');
  return text
    .slice(-OUTPUT_TAIL_BYTES)
    .split('\n')
    .filter((line) => line.trim() !== '' && !line.includes('warning:'))
    .map((line) => line.replace(/^qemu-system-x86_64: /, ''))
    .join('; ');
}

function checkSocketPath(dir: string): void {
  const longest = join(dir, 'console');
  if (Buffer.byteLength(longest) > SOCKET_PATH_MAX) {
    throw new Error(
      `${longest} is too long for a unix socket (${Buffer.byteLength(longest)} bytes of at most ${SOCKET_PATH_MAX}); choose a shorter RELEAP_HOME`,
    );
  }
}
