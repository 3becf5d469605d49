import type { ChildProcess } from 'node:child_process';
import { open, readFile } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import type { StartOptions } from '../driver.ts';
import { JAILED_VMM, launchVmm } from '../jail.ts';
import { identifyProcess } from '../process-identity.ts';
import type { ProcessIdentity } from '../process-identity.ts';
import { commandLine } from './command-line.ts';
import { DESCRIPTORS, INHERITED, JAILED, shareDescriptor, SOCKETS } from './vmm-paths.ts';
import { vmmCommand } from './vmm-store.ts';

const OUTPUT_TAIL_BYTES = 2_000;
/** sockaddr_un(7): 108 bytes with the terminator. */
const SOCKET_PATH_MAX = 107;

/** How a VMM has ended that the kernel, this process or a person has killed. */
export const KILLED = 'signal SIGKILL';

/** A VMM that was just started, and may still fail. */
export interface StartedVmm {
  child: ChildProcess;
  identity: ProcessIdentity;
  /** `ended` is set once it has ended, to how it did. */
  fate: { ended?: string };
}

/** Opens the files of a VMM and starts it. @throws when no process could be started */
export async function startVmm(options: StartOptions): Promise<StartedVmm> {
  const { vmm, machine, boot, dir, jail, shares = [] } = options;
  checkSocketPath(dir);
  await using files = new OpenFiles();
  const args = commandLine({
    ...machine,
    vmmVersion: vmm.version,
    shares: shares.map(({ tag }) => tag),
    append: boot?.append,
    name: dir,
    owner: jail,
    paths: JAILED,
  });
  const command = vmmCommand(JAILED_VMM);
  const inherited: Partial<Record<(typeof INHERITED)[number], number | undefined>> = {
    memory: options.memoryFd,
    state: options.stateFd,
    system: await files.open(machine.hardware.system.path, 'r'),
    ...(boot && (await files.openBoth(boot))),
  };
  const child = launchVmm({
    command: { ...command, args: [...command.args, ...args] },
    vmmFolder: vmm.folder,
    withKvm: machine.accelerator === 'kvm',
    root: jail.root,
    netns: options.netns,
    cgroupProcs: options.cgroupProcs,
    fileMaxMib: options.fileMaxMib,
    outputFd: await files.open(join(dir, 'vmm.log'), 'a'),
    files: INHERITED.map((name) => inherited[name]),
    opened: [
      { as: 'tap', what: options.tap, descriptor: DESCRIPTORS.tap },
      ...SOCKETS.map((name) => ({
        as: 'listen' as const,
        what: join(dir, name),
        descriptor: DESCRIPTORS[name],
      })),
      ...shares.map(({ socket }, index) => ({
        as: 'connect' as const,
        what: socket,
        descriptor: shareDescriptor(index),
      })),
    ],
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
    .map((line) => line.replace(/^qemu-system-\w+: /, ''))
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
