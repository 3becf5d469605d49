import type { ChildProcess } from 'node:child_process';
import { open, readFile } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { commandLine } from './command-line.ts';
import type { MachineOptions } from './command-line.ts';
import { launchVmm } from '../jail.ts';
import type { LaunchOptions } from '../jail.ts';
import { JAILED } from './vmm-paths.ts';
import { identifyProcess } from '../process-identity.ts';
import type { ProcessIdentity } from '../process-identity.ts';
import type { Vmm } from './vmm-store.ts';

const OUTPUT_TAIL_BYTES = 2_000;
/** sockaddr_un(7): 108 bytes with the terminator. */
const SOCKET_PATH_MAX = 107;

export interface StartVmOptions {
  vmm: Vmm;
  machine: Omit<MachineOptions, 'vmmVersion' | 'append' | 'name' | 'owner' | 'paths' | 'shares'>;
  /** Kernel to boot. Without one the VMM waits for a saved state. */
  boot?: { kernel: string; initramfs: string; append: string };
  /** Open file of the guest's memory; writable when it is mapped shared. None if the VMM makes it (`sharing: 'own'`). */
  memoryFd?: number;
  /** Open file of the saved state. */
  stateFd?: number;
  /** Folders of the host that the guest can mount: tags, and the sockets of their servers. */
  shares?: readonly { tag: string; socket: string }[] | undefined;
  /** An existing folder that only root can access, for sockets and the VMM's output. */
  dir: string;
  /** Root folder of the VMM, below `dir`, and its user and group. */
  jail: { root: string; uid: number; gid: number };
  netns: string;
  tap: string;
  cgroupProcs: string[];
  fileMaxMib: number;
  onConsole?: ((chunk: Buffer) => void) | undefined;
  /** Ends the wait for the VMM's QMP connection; the VMM is then killed. */
  signal?: AbortSignal | undefined;
  log: Logger;
}

/** A VMM that was just started, and may still fail. */
export interface StartedVmm {
  child: ChildProcess;
  identity: ProcessIdentity;
  /** `ended` is set once it has ended, to how it did. */
  fate: { ended?: string };
}

/** Opens the files of a VMM and starts it. @throws when no process could be started */
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
      shares: options.shares?.map(({ tag }) => tag),
      append: boot?.append,
      name: dir,
      owner: jail,
      paths: JAILED,
    }),
    withKvm: machine.accelerator === 'kvm',
    root: jail.root,
    socketDir: dir,
    netns: options.netns,
    tap: options.tap,
    cgroupProcs: options.cgroupProcs,
    fileMaxMib: options.fileMaxMib,
    outputFd: await files.open(join(dir, 'vmm.log'), 'a'),
    shares: options.shares?.map(({ socket }) => socket) ?? [],
    files: {
      ...(options.memoryFd !== undefined && { memory: options.memoryFd }),
      ...(options.stateFd !== undefined && { state: options.stateFd }),
      system: await files.open(system.path, 'r'),
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

/** Files that a child process inherits; closed in this process afterwards. */
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

/** The end of a VMM's output, on one line. */
export async function lastOutput(dir: string): Promise<string> {
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
