/**
 * Starts the floor's process in its own network namespace, on the template that a service here has used last or
 * on the suspend image of a paused sandbox.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface, type Interface } from 'node:readline';
import { EmptyExt4Store } from '../../packages/runner/src/disk/empty-ext4.ts';
import { createEmptyQcow2 } from '../../packages/runner/src/disk/qcow2.ts';
import { GUEST } from '../../packages/runner/src/network/address-plan.ts';
import { DEFAULT_MACHINE_SIZE } from '../../packages/runner/src/runner-options.ts';
import {
  type BlockNode,
  commandLine,
  placeholderNode,
} from '../../packages/runner/src/vmm/qemu/command-line.ts';
import { DEVICE_MODEL } from '../../packages/runner/src/vmm/qemu/device-model.ts';
import type { SocketName } from '../../packages/runner/src/vmm/qemu/vmm-paths.ts';
import { unpackedVmm, vmmCommand } from '../../packages/runner/src/vmm/qemu/vmm-store.ts';
import { endOf } from '../processes.ts';
import type { PausedCopy } from './paused-copy.ts';
import type { FloorMachine } from './restore.ts';

const SCRATCH_MIB = 512;
const SYSTEM_DISK = join(import.meta.dirname, '../../build/system.squashfs');

export interface FloorOptions {
  /** Empty, for sockets and write layers. */
  folder: string;
  /** Where a service has made the template and the image already. */
  cacheDir: string;
  rootImage: string;
  /** Most guests at once. */
  slots: number;
  /** What they are restored from; absent for the template. */
  paused?: PausedCopy;
  /** Size of the template's machine; the default one when absent. */
  shape?: typeof DEFAULT_MACHINE_SIZE;
}

export class Floor implements AsyncDisposable {
  readonly #process: ChildProcess;
  readonly #lines: Interface;
  #said = '';

  private constructor(child: ChildProcess) {
    this.#process = child;
    this.#lines = createInterface(child.stdout as NodeJS.ReadableStream);
    // A process that has ended says so by its end.
    child.stdin?.on('error', () => undefined);
    child.stderr?.on('data', (chunk: Buffer) => {
      this.#said = (this.#said + chunk.toString('utf8')).slice(-4000);
    });
  }

  static async start(options: FloorOptions): Promise<Floor> {
    const { folder } = options;
    await writeFile(join(folder, 'floor.json'), JSON.stringify(await describe(options)));
    const floor = new Floor(
      spawn('unshare', ['--net', '--', process.execPath, join(import.meta.dirname, 'restore.ts'), folder], {
        stdio: ['pipe', 'pipe', 'pipe'],
      }),
    );
    const first = await floor.#line();
    if (first !== 'ready') throw new Error(`the floor said ${first}`);
    return floor;
  }

  /** Restores `count` guests at once. @returns milliseconds of each until its `true` had answered */
  async restore(count = 1): Promise<number[]> {
    return await this.#ask(String(count));
  }

  /** Restores a guest that stays until the floor ends. @returns runs `true` in it by its agent, and says how many milliseconds it took */
  async hold(): Promise<() => Promise<number>> {
    await this.#ask('hold');
    return async () => (await this.#ask('true'))[0] ?? Number.NaN;
  }

  async #ask(line: string): Promise<number[]> {
    const answer = this.#line();
    this.#process.stdin?.write(`${line}\n`);
    return JSON.parse(await answer) as number[];
  }

  async #line(): Promise<string> {
    return await new Promise((resolve, reject) => {
      const ended = (): void => reject(new Error(`the floor's process ended: ${this.#said}`));
      this.#process.once('exit', ended);
      this.#lines.once('line', (line) => {
        this.#process.off('exit', ended);
        resolve(line);
      });
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.stdin?.end();
    await endOf(this.#process);
  }
}

/** Nodes that the devices of a machine are started with. */
export const NODE = {
  root: String(placeholderNode('root')['node-name']),
  scratch: String(placeholderNode('scratch')['node-name']),
};

/** What of a machine depends on what it is restored from. */
interface Beginning {
  shape: typeof DEFAULT_MACHINE_SIZE;
  memory: string;
  state: string;
  layer: string;
  resizeTo?: number;
  /** What the write layer lies on. */
  below: BlockNode;
  greeting: FloorMachine['greeting'];
}

/**
 * A state only loads into the machine that it was saved from, so the devices come from the runner's own description
 * of it; what guards a VMM against its guest is left out.
 */
export async function describe(options: FloorOptions): Promise<FloorMachine> {
  const { folder, cacheDir, slots, paused } = options;
  const { accelerator } = JSON.parse(await readFile(join(cacheDir, 'accelerator.json'), 'utf8')) as {
    accelerator: 'kvm' | 'tcg';
  };
  const vmm = await unpackedVmm(join(import.meta.dirname, '../../build'));
  if (vmm === undefined) throw new Error('there is no VMM: run the set-up first');
  const begins = paused === undefined ? await fromTemplate(options) : fromPaused(paused);
  const socket = (name: SocketName): string => `path=${join(folder, `{slot}-${name}`)}`;
  const all = commandLine({
    vmmVersion: vmm.version,
    accelerator,
    hardware: { deviceModel: DEVICE_MODEL, system: { path: SYSTEM_DISK, sha256: '' } },
    ...begins.shape,
    sharing: 'private',
    mac: GUEST.mac,
    name: 'floor',
    owner: { uid: 0, gid: 0 },
    paths: {
      memory: begins.memory,
      system: SYSTEM_DISK,
      kernel: '',
      initramfs: '',
      sockets: { qmp: socket('qmp'), agent: socket('agent'), console: socket('console') },
      tap: 'ifname=tap{slot},script=no,downscript=no',
      share: () => '',
      root: '/',
    },
  });
  // The floor opens its disks at once, where the runner attaches them to a VMM in its jail. Those that follow stay.
  const disks: BlockNode[] = [
    readOnly(NODE.root, options.rootImage),
    {
      driver: 'qcow2',
      'node-name': NODE.scratch,
      discard: 'unmap',
      // A paused sandbox is persistent: its flushes are real.
      ...(paused === undefined ? { cache: { 'no-flush': true } } : {}),
      file: { driver: 'file', filename: join(folder, '{slot}-scratch.qcow2'), discard: 'unmap' },
      backing: begins.below,
    },
    placeholderNode('docker'),
  ];
  const guards = ['-run-with', '-sandbox'];
  const args = all
    .map((arg, at) => (all[at - 1] === '-blockdev' ? JSON.stringify(disks.shift() ?? JSON.parse(arg)) : arg))
    .filter((arg, at) => !guards.includes(arg) && !guards.includes(all[at - 1] ?? ''));
  const { state, layer, greeting, resizeTo } = begins;
  const command = vmmCommand(vmm.folder);
  return {
    accelerator,
    slots,
    qemu: command.program,
    args: [...command.args, ...args],
    env: command.env,
    state,
    layer,
    scratchNode: NODE.scratch,
    activate: Number(vmm.version.split('.')[0]) >= 10,
    ...(resizeTo === undefined ? {} : { resizeTo }),
    greeting,
  };
}

async function fromTemplate(options: FloorOptions): Promise<Beginning> {
  const { folder, cacheDir, shape = DEFAULT_MACHINE_SIZE } = options;
  const template = await lastUsedTemplate(cacheDir, shape);
  const layer = join(folder, 'empty.qcow2');
  const bytes = SCRATCH_MIB * 2 ** 20;
  await createEmptyQcow2(layer, bytes);
  return {
    shape,
    memory: join(template, 'memory'),
    state: join(template, 'state'),
    layer,
    resizeTo: bytes,
    // The very base that the runner puts below a sandbox that is not persistent; made here when no service has.
    below: readOnly('disk-scratch-base', await new EmptyExt4Store(cacheDir).ensure(SCRATCH_MIB, 'overlay')),
    greeting: {
      method: 'configure',
      hostname: 'floor',
      dns: [GUEST.gatewayIp],
      network: { address: GUEST.ip, prefix: GUEST.prefix, gateway: GUEST.gatewayIp, mtu: GUEST.mtu },
      disks: {
        root: { device: 'vda', fstype: 'squashfs' },
        scratch: { device: 'vdb', bytes },
      },
      env: {},
      entrypoint: { argv: ['/bin/sh'] },
    },
  };
}

function fromPaused({ shape, memory, state, base, layers }: PausedCopy): Beginning {
  const [layer = '', ...rest] = [...layers].reverse();
  const below = rest.reverse().reduce<BlockNode>(
    (backing, filename, at) => ({
      driver: 'qcow2',
      'node-name': `disk-scratch-${at}`,
      'read-only': true,
      file: { driver: 'file', filename, 'read-only': true, locking: 'off' },
      backing,
    }),
    readOnly('disk-scratch-base', base),
  );
  return {
    shape,
    memory,
    state,
    layer,
    below,
    greeting: { method: 'reconfigure', hostname: 'floor', env: {} },
  };
}

function readOnly(name: string, filename: string): BlockNode {
  return {
    driver: 'raw',
    'node-name': name,
    'read-only': true,
    file: { driver: 'file', filename, 'read-only': true, locking: 'off' },
  };
}

async function lastUsedTemplate(cacheDir: string, shape: typeof DEFAULT_MACHINE_SIZE): Promise<string> {
  const folder = join(cacheDir, 'templates');
  let last: { path: string; at: number } | undefined;
  for (const name of await readdir(folder)) {
    const path = join(folder, name);
    const file = join(path, 'template.json');
    const made = await stat(file).catch(() => undefined);
    if (made === undefined) continue;
    const { vcpus, memMib } = JSON.parse(await readFile(file, 'utf8')) as typeof DEFAULT_MACHINE_SIZE;
    if (vcpus !== shape.vcpus || memMib !== shape.memMib) continue;
    if (last === undefined || made.mtimeMs > last.at) last = { path, at: made.mtimeMs };
  }
  if (last === undefined) throw new Error(`no template of ${shape.memMib} MiB in ${folder}`);
  return last.path;
}
