import type { Logger } from 'pino';
import { traced } from '@releap/tracing';
import { GuestLostError } from '../machine/index.ts';
import { failpoint } from '../failpoint.ts';
import type { OperationMetrics } from '../metrics/operation-metrics.ts';
import { DEADLINES_MS } from '../vmm/tuning.ts';
import type { Lease } from './step-queue.ts';
import type { Exit, LiveSandbox, SandboxEvents, SandboxHost } from './sandbox-host.ts';
import { messageOf, NOTHING_BESIDE_VM, SandboxOutcome } from './sandbox-outcome.ts';
import { isMove } from './assignment.ts';
import type { SandboxState } from './sandbox-state.ts';
import { CONVERGENCE, DISK_GONE, LAST_STEPS, match, RECOVERY } from './sandbox-table.ts';
import type { ConvergeStep, Facts, RecoveryStep } from './sandbox-table.ts';

/** A pull or build of the root image, and the content of volumes; their clients have deadlines of their own below this. */
const IMAGE_DEADLINE_MS = 30 * 60_000;
/** Grace period of the entrypoint after its signal. */
const STOP_GRACE_MS = 10_000;
/** For all of a stop while the service goes down: others wait for that. */
const DRAIN_DEADLINE_MS = 25_000;

/** The source of a fork. */
export interface ForkSource {
  readonly manifest: string | undefined;
  readonly live: LiveSandbox | undefined;
}

/** The source of a fork, locked against other steps. */
export interface ForkLease extends Lease {
  readonly source: ForkSource;
}

export interface SandboxWorkDeps {
  state: SandboxState;
  host: SandboxHost;
  operations: OperationMetrics;
  log: Logger;
  /** Aborted when the sandbox is to be deleted. */
  deletion: AbortSignal;
  /** Its VM ended by itself; `exit` says why. */
  onExit: () => void;
  /** Its VM was blocked on ENOSPC and runs again. */
  onClockOff: () => void;
}

/** Context of a run of steps. */
interface Context {
  signal: AbortSignal;
  /** Lock of the source, if this is a fork. */
  lease: ForkLease | undefined;
}

/** Performs the steps of `sandbox-table.ts` for a sandbox. The caller ensures that they never overlap. */
export class SandboxWork {
  live: LiveSandbox | undefined;
  /** Exit of a VMM that ended by itself, until its resources are removed. */
  exit: Exit | undefined;
  #vm: 'unknown' | 'lost' | 'none';
  /** How its VM was started, for the failpoint after the report. */
  #started: 'create' | 'start' | 'resume' | 'fork' | undefined;
  readonly #deps: SandboxWorkDeps;
  readonly #state: SandboxState;
  readonly #host: SandboxHost;
  readonly #operations: OperationMetrics;
  readonly #outcome: SandboxOutcome;

  /** @param mayRun whether an earlier runner may have left a VM */
  constructor(deps: SandboxWorkDeps, mayRun: boolean) {
    this.#deps = deps;
    this.#state = deps.state;
    this.#host = deps.host;
    this.#operations = deps.operations;
    this.#outcome = new SandboxOutcome(deps.state, deps.host);
    this.#vm = mayRun ? 'unknown' : 'none';
  }

  /** Recovers the sandbox after a restart of the runner: inspects its local state and makes it consistent. */
  async recover(): Promise<void> {
    for (;;) {
      const step = match(RECOVERY, await this.#facts());
      await this.#recoverySteps[step]();
      if (LAST_STEPS.has(step)) return;
    }
  }

  /** Reconciles towards the desired state. @param lease lock of the source, if this is a fork */
  async converge(signal: AbortSignal, lease?: ForkLease): Promise<void> {
    if (this.#vm !== 'none') await this.recover();
    for (;;) {
      const step = match(CONVERGENCE, await this.#facts());
      const mayContinue = await this.#convergeSteps[step]({ signal, lease });
      if (LAST_STEPS.has(step) || mayContinue === false) return;
    }
  }

  /** The service is stopping: ends its VM. A persistent sandbox can be started again. */
  async drain(error: string): Promise<void> {
    if (this.#state.isPersistent) {
      await this.live?.shutDown(STOP_GRACE_MS, AbortSignal.timeout(DRAIN_DEADLINE_MS));
    }
    await this.end();
    await this.#outcome.report('drained', error);
  }

  /** Its VM has ended by itself. */
  async handleExit(exit: Exit): Promise<void> {
    await this.end();
    await this.#outcome.report('vm-ended', exit.guestEnd ?? exit.reason, exit);
  }

  /** Reports the last observation again. */
  async repeat(): Promise<void> {
    await this.#outcome.repeat();
  }

  /** Removes the VM and its resources; persistent data stays. */
  async end(): Promise<void> {
    await this.release();
    const { vmId, isPersistent } = this.#state;
    await (isPersistent ? this.#host.end(vmId) : this.#host.destroy(vmId, false));
    this.#vm = 'none';
  }

  async destroy(): Promise<void> {
    await this.release();
    await this.#host.destroy(this.#state.vmId, true);
    this.#vm = 'none';
  }

  /** Closes this process's sockets and files of the VM. */
  async release(): Promise<void> {
    const { live } = this;
    this.live = undefined;
    this.exit = undefined;
    await live?.close();
  }

  async #facts(): Promise<Facts> {
    const { served, observation, past, isPersistent, hostRestarted } = this.#state;
    const vm = this.live === undefined ? this.#vm : 'live';
    const { origin, docker_data_mib, volumes } = served.spec;
    // A live VM has its disk, and has consumed its suspend image: no file needs to be checked.
    const local =
      isPersistent && vm !== 'live' ? await this.#host.localState(this.#state.vmId) : NOTHING_BESIDE_VM;
    return {
      desired: served.desired,
      startFrom: served.start_from ?? 'disk',
      status: observation.status,
      persistent: isPersistent,
      vm,
      disk: local.disk,
      memory: local.memory ? 'saved' : 'none',
      memoryConsumed: local.resumed,
      hasManifest: past.manifest !== undefined,
      hasRun: past.ports !== undefined,
      origin: isMove(origin) ? 'move' : (origin?.type ?? 'none'),
      // The VM's own record may be lost after a power failure.
      hostRestarted: local.hostRestarted || hostRestarted,
      canPause: docker_data_mib === undefined && volumes === undefined,
    };
  }

  readonly #recoverySteps: Record<RecoveryStep, () => Promise<void>> = {
    keep: async () => undefined,
    adopt: async () => await this.#adopt(),
    'remove-vm': async () => {
      await this.end();
      // The previous runner may have ended before it was reported.
      if (this.#state.isPersistent && (await this.#host.localState(this.#state.vmId)).memory) {
        this.#host.makeMemoryDurable(this.#state.vmId);
      }
    },
    'start-over': async () => {
      this.#state.past.manifest = undefined;
      await this.destroy();
    },
    'report-stopped': async () => await this.#outcome.report('stopped'),
    'report-resume-failed': async () =>
      await this.#outcome.report('resume-failed', 'it ended while it was being resumed'),
    'report-lost': async () =>
      await this.#outcome.report('vm-lost', 'the micro-VM ended while the runner was not running'),
  };

  /** Steps that can fail return whether to continue. */
  readonly #convergeSteps: Record<ConvergeStep, (context: Context) => Promise<boolean | void>> = {
    destroy: async () => {
      await this.#state.observe('deleting');
      failpoint('delete:recorded');
      await this.destroy();
      failpoint('delete:destroyed');
      await this.#state.observe('deleted');
    },
    'report-running': async () => {
      await this.#state.observe('running', this.live?.addresses);
      if (this.#started !== undefined) failpoint(`${this.#started}:running`);
      this.#started = undefined;
    },
    'copy-origin': async (context) => await this.#copyOrigin(context),
    resume: async ({ signal }) => await this.#resume(signal),
    boot: async ({ signal }) => await this.#boot(signal),
    'shut-down': async () => {
      await this.#state.observe('stopping');
      failpoint('stop:recorded');
      // A newer assignment waits for the end of a stop, except a deletion, which needs no clean disk.
      const { live } = this;
      await this.#operations.run(
        'stop',
        async () => await live?.shutDown(STOP_GRACE_MS, this.#deps.deletion),
      );
      failpoint('stop:down');
      await this.release();
    },
    'discard-memory': async () => {
      await this.#state.observe('stopping');
      failpoint('stop:recorded');
      await this.#host.discardMemory(this.#state.served, this.#state.past, this.#deps.deletion);
      failpoint('stop:down');
    },
    'report-stopped': async () => {
      await this.end();
      failpoint('stop:ended');
      await this.#outcome.report('stopped');
      failpoint('stop:stopped');
    },
    'refuse-pause': async () =>
      await this.#state.observe('running', {
        ...this.live?.addresses,
        error: 'a sandbox with volumes or a Docker data device cannot be paused',
      }),
    suspend: async () => await this.#suspend(),
    'report-paused': async () => {
      await this.end();
      await this.#outcome.report('paused');
    },
  };

  async #adopt(): Promise<void> {
    const { assignment, past } = this.#state;
    try {
      this.live = await this.#host.adopt(assignment, past, this.#events());
      this.#vm = 'none';
      this.#deps.log.info('adopted a running micro-VM');
    } catch (error) {
      this.#vm = 'lost';
      this.#deps.log.warn({ err: error }, 'the micro-VM could not be adopted');
    }
  }

  async #copyOrigin({ signal, lease }: Context): Promise<boolean> {
    const { origin } = this.#state.served.spec;
    if (origin === undefined) throw new Error('the sandbox has no origin');
    try {
      if (origin.type === 'snapshot') await this.#fetchSnapshot(origin.snapshot_id, signal);
      // No resource may exist without a record; it is reported to control when the copy exists.
      await this.#state.observe('booting', {}, false);
      failpoint(`${origin.type === 'fork' ? 'fork' : 'restore'}:recorded`);
      if (origin.type === 'fork') await this.#fork(origin.vm_id, signal, lease);
      else {
        await this.#host.initFromOrigin(this.#state.vmId, origin);
        this.#state.past.manifest = await this.#host.manifestOf(origin.snapshot_id);
      }
      return true;
    } catch (error) {
      this.#state.past.manifest = undefined;
      await this.destroy();
      if (signal.aborted) return false;
      this.#deps.log.warn({ err: error, origin }, 'the origin of the sandbox could not be copied');
      await this.#outcome.report('origin-failed', messageOf(error));
      return false;
    }
  }

  /** A snapshot of another host may have to be fetched from the store. */
  async #fetchSnapshot(id: string, signal: AbortSignal): Promise<void> {
    const fetchSignal = AbortSignal.any([signal, AbortSignal.timeout(IMAGE_DEADLINE_MS)]);
    await this.#host.fetchSnapshot(id, () => this.#state.observe('building'), fetchSignal);
  }

  async #fork(sourceId: string, signal: AbortSignal, lease: ForkLease | undefined): Promise<void> {
    if (lease === undefined) throw new Error('the sandbox that it is a fork of is not on this machine');
    await lease.acquired(signal);
    const { source } = lease;
    this.#state.past.manifest = source.manifest;
    if (source.live === undefined) {
      return await this.#host.initFromOrigin(this.#state.vmId, { type: 'fork', vm_id: sourceId });
    }
    const { live } = source;
    await this.#operations.run('fork', async () => await this.#forkLive(live, signal, lease), signal);
    this.#started = 'fork';
  }

  /** Until the child runs. */
  async #forkLive(source: LiveSandbox, signal: AbortSignal, lease: ForkLease): Promise<void> {
    await using origin = await source.fork(this.#state.vmId);
    // The child continues; the next step of the source waits until its memory is no longer read.
    lease.releaseAfter(origin.copied);
    await this.#state.observe('booting');
    const bootSignal = AbortSignal.any([signal, AbortSignal.timeout(DEADLINES_MS.boot)]);
    const { served, past } = this.#state;
    this.live = await this.#host.startForkChild(served, origin, past, this.#events(), bootSignal);
  }

  async #boot(signal: AbortSignal): Promise<boolean> {
    const { past, served, isPersistent } = this.#state;
    const { root, origin } = served.spec;
    past.manifest ??= served.spec.disk_manifest;
    const operation = past.manifest === undefined ? 'create' : 'start';
    try {
      if (past.manifest === undefined && origin?.type === 'snapshot')
        await this.#fetchSnapshot(origin.snapshot_id, signal);
      const manifest =
        past.manifest ??
        (origin?.type === 'snapshot' ? await this.#host.manifestOf(origin.snapshot_id) : undefined);
      const isQuick =
        served.spec.volumes === undefined &&
        (await this.#host.hasImage(root, manifest)) &&
        (await this.#host.hasTemplate(served));
      await this.#state.observe(isQuick ? 'booting' : 'building');
      failpoint(`${operation}:recorded`);
      // First: if a later step fails, there is a disk and no suspend image, which is what `stopped` means.
      if (isPersistent) {
        const discardSignal = AbortSignal.any([signal, AbortSignal.timeout(DEADLINES_MS.boot)]);
        await this.#host.discardMemory(served, past, discardSignal);
        failpoint(`${operation}:discarded`);
      }
      const imageSignal = AbortSignal.any([signal, AbortSignal.timeout(IMAGE_DEADLINE_MS)]);
      using image = await traced(
        'acquire image',
        async () => await this.#host.acquireImage(root, imageSignal, manifest, origin, isPersistent),
      );
      if (served.spec.volumes !== undefined) await this.#host.openVolumes(served, imageSignal);
      else await this.#host.makeTemplate(served, imageSignal);
      if (this.#state.observation.status === 'building') await this.#state.observe('booting');
      failpoint(`${operation}:image`);
      const bootMs = served.spec.volumes === undefined ? DEADLINES_MS.boot : DEADLINES_MS.bootWithVolumes;
      const bootSignal = AbortSignal.any([signal, AbortSignal.timeout(bootMs)]);
      // Never replaces a lost disk with an empty one: the loss would go unnoticed.
      if (isPersistent && operation === 'start') {
        if (!(await this.#host.localState(this.#state.vmId)).disk) throw new Error(DISK_GONE);
      }
      const boot = async (): Promise<LiveSandbox> =>
        await this.#host.boot(served, image, past, this.#events(), bootSignal);
      this.live = await traced('start micro-VM', () => this.#operations.run('boot', boot, signal));
      failpoint(`${operation}:booted`);
      signal.throwIfAborted();
      past.manifest = image.digest;
      this.#started = operation;
      return true;
    } catch (error) {
      await this.end();
      if (signal.aborted) return false;
      this.#deps.log.warn({ err: error }, 'the sandbox could not be started');
      await this.#outcome.report('boot-failed', messageOf(error));
      return false;
    }
  }

  async #resume(signal: AbortSignal): Promise<boolean> {
    const { served, past } = this.#state;
    try {
      await this.#state.observe('booting');
      failpoint('resume:recorded');
      const bootSignal = AbortSignal.any([signal, AbortSignal.timeout(DEADLINES_MS.boot)]);
      this.live = await this.#operations.run(
        'resume',
        async () => await this.#host.resume(served, past, this.#events(), bootSignal),
        signal,
      );
      this.#started = 'resume';
      return true;
    } catch (error) {
      await this.end();
      if (signal.aborted) return false;
      this.#deps.log.warn({ err: error }, 'the sandbox could not be resumed');
      await this.#outcome.report('resume-failed', messageOf(error));
      return false;
    }
  }

  async #suspend(): Promise<void> {
    await this.#state.observe('pausing');
    failpoint('pause:recorded');
    try {
      const { live } = this;
      await this.#operations.run('pause', async () => await live?.suspend());
      failpoint('pause:ended');
      await this.release();
      await this.#state.observe('paused');
      failpoint('pause:paused');
    } catch (error) {
      this.#deps.log.warn({ err: error }, 'the sandbox could not be paused');
      if (!(error instanceof GuestLostError) && this.live && !this.exit) {
        return await this.#state.observe('running', { ...this.live.addresses, error: messageOf(error) });
      }
      const { exit } = this;
      await this.end();
      await this.#outcome.report('suspend-failed', exit?.guestEnd ?? messageOf(error), exit);
    }
    await this.end();
  }

  #events(): SandboxEvents {
    this.exit = undefined;
    return {
      onExit: (exit) => {
        this.exit = exit;
        this.#deps.onExit();
      },
      onClockOff: this.#deps.onClockOff,
    };
  }
}
