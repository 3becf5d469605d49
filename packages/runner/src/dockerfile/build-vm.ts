/** A micro-VM that builds one Dockerfile, and ends with it. */
import { randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { Logger } from 'pino';
import { BUILD_DISK } from '../image/builtin/builder.ts';
import type { RootImage } from '../image/image-store.ts';
import { GuestClient } from '../guest/index.ts';
import type { Admission, Machines, RunningVm } from '../machine/index.ts';
import { GUEST } from '../network/address-plan.ts';
import type { Network } from '../network/network.ts';
import type { Slot } from '../network/slot.ts';
import { freshness } from '../reconcile/guest-config.ts';
import { configure, powerOff, watch } from '../reconcile/guest-life.ts';
import { guestSize } from '../template/machine-size.ts';
import { setOomScore } from '../vmm/jail.ts';
import type { BuildLimits } from './build-limits.ts';

/** What its root file system takes besides the build's own disk: logs and configuration. */
const SCRATCH_MIB = 512;
/** Beside sandboxes that want the processors as well, a build weighs this much of its CPUs. */
const CPU_WEIGHT = 1 / 4;
const POWER_OFF_DEADLINE_MS = 30_000;
const OUTPUT_TAIL_CHARS = 8 * 1024;

export interface BuildVmOptions {
  machines: Machines;
  network: Network;
  admission: Admission;
  image: RootImage;
  /** Raw file with the layer cache, of `limits.diskMib`. */
  disk: string;
  limits: BuildLimits;
  /** Ends the start. */
  signal: AbortSignal;
  log: Logger;
}

export interface CommandOptions {
  signal: AbortSignal;
  /** Its standard input; none by default. */
  input?: AsyncIterable<Uint8Array>;
  /** Sees what it prints on standard output. */
  onOutput?: (chunk: Buffer) => void;
}

export interface CommandResult {
  exitCode: number;
  /** The ends of what it has printed. */
  stdout: string;
  stderr: string;
}

export class BuildVm implements AsyncDisposable {
  readonly #options: Pick<BuildVmOptions, 'machines' | 'network' | 'log'>;
  readonly #id: string;
  readonly #running: RunningVm;
  readonly #died: Promise<never>;
  readonly guest: GuestClient;

  private constructor(
    options: BuildVmOptions,
    id: string,
    running: RunningVm,
    guest: GuestClient,
    died: Promise<never>,
  ) {
    this.#options = options;
    this.#id = id;
    this.#running = running;
    this.guest = guest;
    this.#died = died;
  }

  /** @throws when it does not start, or cannot mount its disks; nothing of it is left then */
  static async start(options: BuildVmOptions): Promise<BuildVm> {
    const { machines, network, admission, image, limits, signal, log } = options;
    const id = `build-${randomBytes(8).toString('hex')}`;
    const shape = guestSize({ vcpus: limits.cpus, memMib: limits.memMib });
    let started: { running: RunningVm; guest?: GuestClient } | undefined;
    try {
      // A template of a new size takes a cold boot, and starts that are queued behind this one need none.
      await machines.templates.ensure(shape, signal);
      return await admission.run(async (_queuedMs, guestRuns) => {
        const slot = await network.take(id);
        const running = await machines.boot({
          vmId: id,
          slot,
          shape,
          disks: {
            rootImagePath: image.path,
            scratchMib: SCRATCH_MIB,
            dockerDataMib: limits.diskMib,
            dockerDisk: options.disk,
          },
          cpu: { guaranteed: limits.cpus * CPU_WEIGHT, max: limits.cpus },
          signal,
        });
        started = { running };
        setOomScore(running.vm.identity.pid, 'spot');
        guestRuns();
        const died = watch(running, { onExit: () => undefined, onClockOff: () => undefined });
        const guest = await GuestClient.open(running.agentSocketPath, { log, signal });
        started.guest = guest;
        await Promise.race([
          configure(guest, configOf(image, running, slot, shape.reservedMib), signal, log),
          died,
        ]);
        return new BuildVm(options, id, running, guest, died);
      }, signal);
    } catch (error) {
      started?.guest?.close();
      started?.running.vm.detach();
      await remove(options, id);
      throw error;
    }
  }

  /** Runs a shell command as root. @throws when the VM or the connection to it ends, or the signal aborts */
  async run(shell: string, { signal, input, onOutput }: CommandOptions): Promise<CommandResult> {
    signal.throwIfAborted();
    const process = this.guest.exec({ shell, stdin: input !== undefined }, { signal });
    let [stdout, stderr] = ['', ''];
    process.stdout.on('data', (chunk: Buffer) => {
      onOutput?.(chunk);
      stdout = `${stdout}${chunk.toString()}`.slice(-OUTPUT_TAIL_CHARS);
    });
    process.stderr.on('data', (chunk: Buffer) => {
      stderr = `${stderr}${chunk.toString()}`.slice(-OUTPUT_TAIL_CHARS);
    });
    const fed = input === undefined ? undefined : pipeline(Readable.from(input), process.stdin, { signal });
    // What its input was wrong with is the better reason than what it says of it.
    const feeding = fed?.catch((error: unknown) => {
      process.cancel();
      throw error;
    });
    const [, { exitCode }] = await Promise.race([Promise.all([feeding, process.exit]), this.#died]);
    return { exitCode, stdout, stderr };
  }

  /** Ends it in order. @returns whether everything that it has written is on its disk */
  async powerOff(): Promise<boolean> {
    try {
      await powerOff(this.#running, this.guest, 0, AbortSignal.timeout(POWER_OFF_DEADLINE_MS));
      return true;
    } catch (error) {
      this.#options.log.warn({ err: error, vm: this.#id }, 'the micro-VM of a build did not power off');
      return false;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.guest.close();
    this.#running.vm.detach();
    await remove(this.#options, this.#id);
  }
}

async function remove(
  { machines, network }: Pick<BuildVmOptions, 'machines' | 'network'>,
  id: string,
): Promise<void> {
  await machines.destroy(id);
  await network.release(id);
}

function configOf(
  { config }: RootImage,
  { diskBytes }: RunningVm,
  { dns }: Slot,
  reservedMib: number | undefined,
): Parameters<typeof configure>[1] {
  return {
    hostname: 'build',
    machineId: randomBytes(16).toString('hex'),
    ...freshness(),
    dns,
    network: { address: GUEST.ip, prefix: GUEST.prefix, gateway: GUEST.gatewayIp, mtu: GUEST.mtu },
    disks: {
      root: { device: 'vda', fstype: 'squashfs' },
      scratch: { device: 'vdb', bytes: diskBytes.scratch },
      // Mounted at BUILD_DISK.
      docker: { device: 'vdc', bytes: diskBytes.docker },
    },
    ...(reservedMib !== undefined && { reserveBytes: reservedMib * 1024 * 1024 }),
    env: config.env,
    workingDir: BUILD_DISK,
  };
}
