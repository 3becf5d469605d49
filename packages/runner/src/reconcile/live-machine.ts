import type { Logger } from 'pino';
import type { Assignment } from './assignment.ts';
import { nowNs } from '../guest/index.ts';
import type { GuestClient } from '../guest/index.ts';
import type { DiskChain } from '../disk/disk-chain.ts';
import type { LogFile } from '../logs/log-file.ts';
import { checkGuestHasSpace, GuestLostError, isBlockedOnSpace } from '../machine/index.ts';
import type {
  CapturedImage,
  ForkOrigin,
  GuestHold,
  Machines,
  RunningVm,
  SnapshotFacts,
  TakeVmm,
} from '../machine/index.ts';
import { failpoint } from '../failpoint.ts';
import { IdleStop } from '../vmm/idle-stop.ts';
import type { AgentConnection } from './agent-connection.ts';
import { AgentWatch } from './agent-watch.ts';
import { checkClock } from './check-clock.ts';
import { MemoryWatch } from './memory-watch.ts';
import { ShareWatch } from './share-watch.ts';
import { powerOff } from './guest-life.ts';
import type { Addresses, LiveSandbox } from './sandbox-host.ts';

/** Frozen processes are thawed by the agent after this time; longer than any operation that freezes them. */
const THAW_AFTER_MS = 120_000;
/** Limit for writing the guest's dirty pages to its disk before it is frozen. */
const SYNC_DEADLINE_MS = 10_000;
const FREEZE_DEADLINE_MS = 10_000;
const THAW_DEADLINE_MS = 10_000;
const CLOCK_DEADLINE_MS = 10_000;
/** A freeze without a warm-up is slower, but has no other drawback. */
const WARM_UP_DEADLINE_MS = 2_000;

export type Logs = { console: LogFile; entrypoint: LogFile };

export interface LiveMachineOptions {
  assignment: Assignment;
  machines: Machines;
  running: RunningVm;
  /** An earlier runner has stopped it because it was idle. */
  isFrozen?: boolean;
  agent: AgentConnection;
  logs: Logs;
  addresses: Addresses;
  /** Holds the image with that digest. @throws when it is no longer on this host */
  findImage: (manifest: string) => Promise<CapturedImage & Disposable>;
  /** A pooled VMM for a fork of this sandbox, if there is one. */
  takeVmm: TakeVmm;
  /** Called when the guest's clock is found to be wrong. */
  onClockOff: () => void;
  /** Most memory that its VMM and guest may have written, if the machine has more than the sandbox asked for. */
  writtenMaxMib?: number | undefined;
  /** Records what it has used so far: some counters end with the VMM. */
  readCounters: () => void;
  log: Logger;
}

/** The running micro-VM of a sandbox, with its agent and logs. */
export class LiveMachine implements LiveSandbox {
  readonly addresses: Addresses;
  readonly console: LogFile;
  readonly entrypoint: LogFile;
  readonly #options: LiveMachineOptions;
  readonly #log: Logger;
  readonly #closing = new AbortController();
  readonly #watch: AgentWatch;
  readonly #shares: ShareWatch;
  readonly #memory: MemoryWatch;
  readonly #idle: IdleStop;
  /** The compacted layer that is being written; undefined when there is none. */
  #writing: Promise<DiskChain | undefined> = Promise.resolve(undefined);

  constructor(options: LiveMachineOptions) {
    this.#options = options;
    this.addresses = options.addresses;
    this.console = options.logs.console;
    this.entrypoint = options.logs.entrypoint;
    this.#log = options.log.child({ vm: options.assignment.vm_id });
    const { vm } = options.running;
    this.#idle = new IdleStop(vm, options.isFrozen ?? false);
    this.#watch = new AgentWatch({
      ping: async (deadlineMs) => await (await this.guest()).ping(deadlineMs),
      onAnswer: async (deadlineMs) => await checkClock(await this.guest(), deadlineMs, options.onClockOff),
      isExcused: () => vm.isStopped || vm.waitsForSpace,
      tell: (line) => this.console.write(Buffer.from(`\n[releap] ${line}\n`)),
      log: this.#log,
    });
    this.#shares = new ShareWatch(options.running, this.#log);
    const { running, writtenMaxMib: maxMib } = options;
    this.#memory = new MemoryWatch({ running, maxMib, log: this.#log });
  }

  async guest(): Promise<GuestClient> {
    return await this.#options.agent.connected();
  }

  async shutDown(graceMs: number, hurry: AbortSignal): Promise<void> {
    const { running, readCounters } = this.#options;
    this.#shares.close();
    this.#memory.close();
    readCounters();
    try {
      await this.thaw();
      await powerOff(running, await this.guest(), graceMs, hurry);
    } catch (error) {
      this.#log.warn({ err: error }, 'the guest did not power off; its VMM is ended');
    }
    await running.vm.kill();
  }

  async suspend(): Promise<void> {
    const { assignment, machines, running } = this.#options;
    const vmId = assignment.vm_id;
    this.#refuseWithVolumes('paused');
    await this.thaw();
    await checkGuestHasSpace(running.vm);
    const guest = await this.guest();
    await guest.sync({ deadlineMs: SYNC_DEADLINE_MS }).catch((error: unknown) => {
      // The suspend image has these pages; only a start that discards it loses them.
      this.#log.warn({ err: error }, 'dirty pages were not flushed before the pause');
    });
    await this.#hold().warmUp();
    // Before the memory is saved: that is no use of the sandbox.
    this.#options.readCounters();
    await using pausing = await machines.persistent.beginPause(vmId, running);
    const startedAt = performance.now();
    try {
      await this.#hold().freeze(false);
      const frozenMs = Math.round((performance.now() - startedAt) * 10) / 10;
      failpoint('pause:frozen');
      const steps = await pausing.finish();
      this.#log.info({ steps: { frozen: frozenMs, ...steps } }, 'sandbox paused');
    } catch (error) {
      if (error instanceof GuestLostError) throw error;
      await this.#hold()
        .thaw()
        .catch((second: unknown) => {
          // It responds when there is space, and otherwise thaws by itself.
          if (running.vm.waitsForSpace) return;
          throw new GuestLostError(
            `the sandbox could not be paused (${(error as Error).message}) and could not be resumed: ${(second as Error).message}`,
          );
        });
      throw running.vm.waitsForSpace ? isBlockedOnSpace() : error;
    }
    machines.persistent
      .makeMemoryDurable(vmId)
      .catch((error: unknown) => this.#log.warn({ err: error }, 'a suspend image is not durable yet'));
  }

  async pauseForSpace(isShort: () => boolean): Promise<void> {
    await this.#options.running.vm.pauseForSpace(isShort);
  }

  get isFrozen(): boolean {
    return this.#idle.isFrozen;
  }

  get isSilent(): boolean {
    return this.#watch.isSilent;
  }

  async freeze(turn: string): Promise<void> {
    await this.#idle.freeze(turn);
  }

  async thaw(turn?: string): Promise<boolean> {
    return await this.#idle.thaw(turn);
  }

  async setClock(hurry: AbortSignal): Promise<void> {
    const gone = Promise.withResolvers<never>();
    const onAbort = (): void => gone.reject(new Error('the wait was cancelled'));
    hurry.addEventListener('abort', onAbort, { once: true });
    if (hurry.aborted) onAbort();
    const setting = this.guest().then((guest) =>
      guest.setClock(undefined, { deadlineMs: CLOCK_DEADLINE_MS, signal: hurry }),
    );
    try {
      await Promise.race([setting, gone.promise]);
    } finally {
      hurry.removeEventListener('abort', onAbort);
      setting.catch(() => undefined);
    }
  }

  /** The servers of its volumes map its memory and know its open files: a copy of it would have neither. */
  #refuseWithVolumes(what: string): void {
    if (this.#options.assignment.spec.volumes !== undefined)
      throw new Error(`a sandbox with volumes cannot be ${what}`);
  }

  async fork(child: string): Promise<ForkOrigin> {
    this.#refuseWithVolumes('forked');
    const { machines, takeVmm } = this.#options;
    await this.thaw();
    return await machines.captures.fork(this.#source(), child, takeVmm);
  }

  async snapshot(
    id: string,
    kind: 'disk' | 'full',
    manifest: string,
    parentId: string | undefined,
  ): Promise<SnapshotFacts> {
    const { machines, findImage } = this.#options;
    if (kind === 'full') this.#refuseWithVolumes('captured with its memory');
    using image = await findImage(manifest);
    await this.thaw();
    return await machines.captures.snapshot(id, kind, this.#source(), image, parentId);
  }

  async compactDisk(alone: (work: () => Promise<void>) => Promise<void>): Promise<void> {
    const { compaction } = this.#options.machines;
    const { signal } = this.#closing;
    const writing = compaction.write(this.#source(), signal);
    this.#writing = writing.catch(() => undefined);
    const compacted = await writing;
    if (compacted === undefined) return;
    await alone(async () => {
      // After `close` the folder belongs to another operation.
      signal.throwIfAborted();
      this.#writing = Promise.resolve(undefined);
      await compaction.replaceBackingChain(this.#source(), compacted);
    });
  }

  async close(): Promise<void> {
    const { agent, running, logs, machines } = this.#options;
    this.#watch.close();
    this.#shares.close();
    this.#memory.close();
    this.#closing.abort(new Error('the sandbox does not run any more'));
    // Removes a partial layer; otherwise it would stay in the folder until the sandbox runs again.
    const compacted = await this.#writing;
    if (compacted !== undefined) {
      await machines.compaction
        .abandon(compacted)
        .catch((error: unknown) => this.#log.warn({ err: error }, 'an unused layer could not be removed'));
    }
    agent.close();
    running.vm.detach();
    await closeLogs(logs);
  }

  #source(): Parameters<Machines['captures']['fork']>[0] {
    const { assignment, running } = this.#options;
    const { persistent, project_id: project } = assignment.spec;
    return { vmId: assignment.vm_id, project, running, persistent, hold: this.#hold() };
  }

  /** Operations of the agent that a capture needs. */
  #hold(): GuestHold {
    return {
      warmUp: async () => {
        const guest = await this.guest();
        await guest.warmUpFreeze({ deadlineMs: WARM_UP_DEADLINE_MS }).catch(() => undefined);
      },
      sync: async () => {
        // Data that is not flushed in time is not in the snapshot, as after a power failure.
        await (await this.guest()).sync({ deadlineMs: SYNC_DEADLINE_MS }).catch(() => undefined);
      },
      freeze: async (flush) => {
        const guest = await this.guest();
        await guest.freeze({
          ...(flush ? { flushOnly: true } : { processesOnly: true }),
          thawAfterMs: THAW_AFTER_MS,
          silent: true,
          deadlineMs: FREEZE_DEADLINE_MS,
        });
      },
      thaw: async () => {
        const guest = await this.guest();
        // Its clock was stopped too.
        const { clockNs } = await guest.thaw({ clockNs: nowNs(), deadlineMs: THAW_DEADLINE_MS });
        await guest.setClock(clockNs, { deadlineMs: THAW_DEADLINE_MS });
      },
    };
  }
}

export async function closeLogs(logs: Logs): Promise<void> {
  await Promise.all([logs.console.close(), logs.entrypoint.close()]);
}
