import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Origin, PortMapping, RootSource } from '@releap/contract';
import { activeTraceparent, traced } from '@releap/tracing';
import type { Assignment } from './assignment.ts';
import { LogFile } from '../logs/log-file.ts';
import type { ForkOrigin, LocalState, RunningVm } from '../machine/index.ts';
import { failpoint } from '../failpoint.ts';
import { guestSize, type GuestSize } from '../template/machine-size.ts';
import { adoptFrozen } from '../vmm/idle-stop.ts';
import { setOomScore } from '../vmm/jail.ts';
import { AgentConnection } from './agent-connection.ts';
import { bootAttempts, type BootAttempt } from './boot-attempts.ts';
import { flushMemory } from './flush-memory.ts';
import { guestConfig } from './guest-config.ts';
import { configure, watch } from './guest-life.ts';
import { closeLogs, LiveMachine } from './live-machine.ts';
import type { Logs } from './live-machine.ts';
import type { MachineHostOptions } from './machine-host-options.ts';
import { MachineStarts } from './machine-starts.ts';
import type { StartedVm } from './machine-starts.ts';
import { RestoredGuests } from './restored-guests.ts';
import { RootImages } from './root-images.ts';
import type { HeldImage, LiveSandbox, SandboxHistory, SandboxEvents, SandboxHost } from './sandbox-host.ts';
import { SandboxVolumes } from './sandbox-volumes.ts';

const VMM_END_GRACE_MS = 1_000;
const CONNECT_DEADLINE_MS = 20_000;
/**
 * Deadline for adopting a guest: the runner connects to control after all guests were adopted, and counts as lost after
 * `RUNNER_LOST_AFTER_MS`. One guest must not delay it that long.
 */
export const ADOPT_DEADLINE_MS = 30_000;

/** How a guest resumes from memory. */
interface Continuation {
  operation: 'resume' | 'fork';
  /** Starts its VM; the processes of the guest are frozen. */
  restore: (rootImagePath: string, onConsole: (chunk: Buffer) => void) => Promise<StartedVm>;
  /** Aborts the wait for the guest's agent. */
  patience: () => AbortSignal;
  /** Called when the VM runs and the agent has failed. */
  abandon: (running: RunningVm) => Promise<void>;
}

/** Runs sandboxes as micro-VMs of this machine: combines image, network slot, VM, agent and logs. */
export class MachineHost implements SandboxHost {
  readonly #options: MachineHostOptions;
  readonly #roots: RootImages;
  readonly #starts: MachineStarts;
  readonly #volumes: SandboxVolumes;
  readonly #restored: RestoredGuests;

  constructor(options: MachineHostOptions) {
    this.#options = options;
    this.#roots = new RootImages(options.images, options.machines);
    this.#volumes = new SandboxVolumes(options.volumes, options.log);
    this.#restored = new RestoredGuests(options);
    this.#starts = new MachineStarts({ ...options, roots: this.#roots, volumes: this.#volumes });
  }

  async hasImage(source: RootSource, manifest?: string): Promise<boolean> {
    return await this.#roots.has(source, manifest);
  }

  async acquireImage(
    source: RootSource,
    signal: AbortSignal,
    manifest: string | undefined,
    origin: Origin | undefined,
    durable: boolean,
  ): Promise<HeldImage> {
    return await this.#roots.acquire(source, signal, manifest, origin, durable);
  }

  async fetchSnapshot(snapshotId: string, onFetch: () => Promise<void>, signal: AbortSignal): Promise<void> {
    const { artifacts } = this.#options;
    if (await artifacts.hasSnapshot(snapshotId)) return;
    await onFetch();
    await artifacts.ensureSnapshot(snapshotId, signal);
  }

  async manifestOf(snapshotId: string): Promise<string> {
    return await this.#roots.manifestOf(snapshotId);
  }

  async hasTemplate({ spec }: Assignment): Promise<boolean> {
    return await this.#options.machines.templates.has(sizeOf(spec));
  }

  async makeTemplate({ spec }: Assignment, signal: AbortSignal): Promise<void> {
    await this.#options.machines.templates.ensure(sizeOf(spec), signal);
  }

  async openVolumes({ vm_id: vmId, spec }: Assignment, signal: AbortSignal): Promise<void> {
    await this.#volumes.open(vmId, spec.volumes ?? [], signal);
  }

  async boot(
    assignment: Assignment,
    image: HeldImage,
    past: SandboxHistory,
    events: SandboxEvents,
    signal: AbortSignal,
  ): Promise<LiveSandbox> {
    const { network, admission, storeProgram, log } = this.#options;
    const { vm_id: vmId, spec } = assignment;
    const operation = past.manifest === undefined ? 'create' : 'start';
    const startedAt = performance.now();
    // Those who wait for their turn run in the context of the one before.
    const parent = activeTraceparent() ?? '';
    const logs = this.#openLogs(vmId);
    logs.console.write(
      Buffer.from(
        `[releap] ${new Date().toISOString()} ${spec.vcpus} CPUs, ${spec.mem_mib} MiB, root image ${image.digest}\n`,
      ),
    );
    const agent = new AgentConnection((data) => logs.entrypoint.write(data), log);
    let restored: RunningVm | undefined;
    try {
      const { object_stores: stores = [] } = spec;
      const mounts = stores.length === 0 ? {} : { storeProgram: await storeProgram.find() };
      const { running, slot, warm, queuedMs, timingsUs } = await admission.run(
        async (queuedMs, guestRuns) => {
          const attempt = async ({ events, onConsole, verbose }: BootAttempt) => {
            const made = await this.#starts.fresh(assignment, image, { onConsole, verbose, signal });
            restored = made.running;
            this.#replaceSecrets(assignment);
            await this.#serveStores(assignment);
            guestRuns();
            failpoint(`${operation}:restored`);
            const died = watch(made.running, events);
            const config = { ...guestConfig(vmId, spec, image, made.running, made.slot.dns), ...mounts };
            const configured = traced(
              'guest until ready',
              async () => {
                const guest = await agent.open(made.running.agentSocketPath, signal);
                return await configure(guest, config, signal, log.child({ vm: vmId }));
              },
              { parent },
            );
            // When the VMM dies its connections close first; its end is the better reason.
            const failed = configured.catch(async (error: unknown) => {
              if (!signal.aborted)
                await Promise.race([sleep(VMM_END_GRACE_MS, undefined, { ref: false }), died]);
              throw error;
            });
            const timingsUs = await Promise.race([failed, died]);
            failpoint(`${operation}:configured`);
            return { ...made, queuedMs, timingsUs };
          };
          return await bootAttempts(
            {
              boots: spec.volumes !== undefined,
              events,
              onConsole: (chunk) => logs.console.write(chunk),
              clear: async () => await this.#starts.clear(assignment),
              signal,
              log: log.child({ vm: vmId }),
            },
            attempt,
          );
        },
        signal,
      );
      const ports = await network.forward(vmId, spec.ports, past.ports);
      log.info(
        {
          vm: vmId,
          warm,
          ms: Math.round(performance.now() - startedAt),
          queued_ms: queuedMs,
          steps: running.timings,
          guest_us: timingsUs,
        },
        'sandbox runs',
      );
      return await this.#live(assignment, running, events, agent, logs, slot.hostAddress, ports);
    } catch (error) {
      agent.close();
      restored?.vm.detach();
      await closeLogs(logs);
      throw error;
    }
  }

  async resume(
    assignment: Assignment,
    past: SandboxHistory,
    events: SandboxEvents,
    signal: AbortSignal,
  ): Promise<LiveSandbox> {
    return await this.#continueGuest(assignment, past, events, signal, {
      operation: 'resume',
      restore: (rootImagePath, onConsole) =>
        this.#starts.fromMemory(assignment, rootImagePath, 'resumed', onConsole, signal),
      // The suspend image is consumed: from here on it is not cancelled; deadlines apply.
      patience: () => AbortSignal.timeout(CONNECT_DEADLINE_MS),
      abandon: (running) => this.#suspendAgain(assignment.vm_id, running),
    });
  }

  /** Pauses a resumed guest that does not respond, so that no state is lost. */
  async #suspendAgain(vmId: string, running: RunningVm): Promise<void> {
    try {
      await using pausing = await this.#options.machines.persistent.beginPause(vmId, running);
      await pausing.finish();
    } catch (error) {
      this.#options.log.warn({ vm: vmId, err: error }, 'a sandbox that could not be resumed lost its memory');
    }
    running.vm.detach();
  }

  async initFromOrigin(vmId: string, origin: Origin): Promise<void> {
    const { captures } = this.#options.machines;
    if (origin.type === 'fork') {
      await captures.forkPaused(origin.vm_id, vmId);
    } else {
      const { snapshot_id: id, moved = false } = origin;
      if (moved) await this.#roots.placeOf(id);
      await captures.restore(id, vmId);
      // The copy on its former host is removed once this one is reported.
      if (moved) return await this.#options.machines.persistent.makeMemoryDurable(vmId);
    }
    this.makeMemoryDurable(vmId);
  }

  async captureResting(vmId: string, snapshotId: string, manifest: string): Promise<void> {
    using image = await this.#roots.find(manifest);
    await this.#options.machines.captures.snapshotResting(snapshotId, vmId, image);
  }

  async startForkChild(
    assignment: Assignment,
    origin: ForkOrigin,
    past: SandboxHistory,
    events: SandboxEvents,
    signal: AbortSignal,
  ): Promise<LiveSandbox> {
    return await this.#continueGuest(assignment, past, events, signal, {
      operation: 'fork',
      restore: (rootImagePath, onConsole) =>
        this.#starts.asFork(assignment, rootImagePath, origin, onConsole, signal),
      patience: () => signal,
      abandon: async ({ vm }) => vm.detach(),
    });
  }

  /** Starts a VM whose guest resumes from memory, as the sandbox of this assignment. */
  async #continueGuest(
    assignment: Assignment,
    past: SandboxHistory,
    events: SandboxEvents,
    signal: AbortSignal,
    how: Continuation,
  ): Promise<LiveSandbox> {
    const { vm_id: vmId } = assignment;
    const startedAt = performance.now();
    const logs = this.#openLogs(vmId);
    const agent = new AgentConnection((data) => logs.entrypoint.write(data), this.#options.log);
    let restored: RunningVm | undefined;
    try {
      const start = async (rootImagePath: string, queuedMs: number, guestRuns: () => void) => {
        const made = await how.restore(rootImagePath, (chunk) => logs.console.write(chunk));
        restored = made.running;
        this.#replaceSecrets(assignment);
        await this.#serveStores(assignment);
        guestRuns();
        const ports = await this.#restored.resume(
          assignment,
          past,
          { ...made, agent, events },
          how.patience(),
        );
        failpoint(`${how.operation}:thawed`);
        return { ...made, ports, queuedMs };
      };
      const made = await this.#starts.whenAdmitted(assignment, past, start, signal);
      const { running, slot, ports } = made;
      const { operation } = how;
      const ms = Math.round(performance.now() - startedAt);
      this.#options.log.info(
        { vm: vmId, operation, ms, queued_ms: made.queuedMs, steps: running.timings },
        'sandbox continues from memory',
      );
      return await this.#live(assignment, running, events, agent, logs, slot.hostAddress, ports);
    } catch (error) {
      agent.close();
      if (restored) await how.abandon(restored);
      await closeLogs(logs);
      throw error;
    }
  }

  async adopt(assignment: Assignment, past: SandboxHistory, events: SandboxEvents): Promise<LiveSandbox> {
    const { machines, network, log } = this.#options;
    const vmId = assignment.vm_id;
    const slot = network.adopt(vmId);
    if (slot === undefined) throw new Error('the sandbox has no network slot');
    this.#replaceSecrets(assignment);
    this.#volumes.use(vmId, assignment.spec.volumes ?? []);
    const logs = this.#openLogs(vmId);
    const agent = new AgentConnection((data) => logs.entrypoint.write(data), log);
    let running: RunningVm | undefined;
    const patience = AbortSignal.timeout(ADOPT_DEADLINE_MS);
    try {
      running = await machines.adopt(vmId, { onConsole: (chunk) => logs.console.write(chunk) });
      void watch(running, events);
      agent.adopt(running.agentSocketPath);
      const isFrozen = await adoptFrozen(running.vm);
      // A guest that is blocked on ENOSPC responds when there is space.
      if (!isFrozen && !(await running.vm.isBlockedOnSpace())) {
        await this.#restored.recoverPaused(assignment, past, { running, agent }, patience);
      }
      const ports = await network.forward(vmId, assignment.spec.ports, past.ports);
      return await this.#live(assignment, running, events, agent, logs, slot.hostAddress, ports, isFrozen);
    } catch (error) {
      agent.close();
      running?.vm.detach();
      await closeLogs(logs);
      throw error;
    }
  }

  async localState(vmId: string): Promise<LocalState> {
    return await this.#options.machines.persistent.localState(vmId);
  }

  makeMemoryDurable(vmId: string): void {
    const { machines, log } = this.#options;
    machines.persistent
      .makeMemoryDurable(vmId)
      .catch((error: unknown) => log.warn({ vm: vmId, err: error }, 'a suspend image is not durable yet'));
  }

  async checkMemory(vmId: string): Promise<void> {
    await this.#options.machines.persistent.checkMemory(vmId);
  }

  async discardMemory(assignment: Assignment, past: SandboxHistory, signal: AbortSignal): Promise<void> {
    const { machines, log } = this.#options;
    const vmId = assignment.vm_id;
    if (!(await this.localState(vmId)).memory) return;
    try {
      await flushMemory(this.#starts, assignment, past, signal, log);
    } catch (error) {
      signal.throwIfAborted();
      log.warn({ vm: vmId, err: error }, 'a suspend image is discarded without flushing its dirty pages');
    }
    await machines.persistent.dropMemory(vmId);
    await this.end(vmId);
  }

  async end(vmId: string): Promise<void> {
    const { machines, network, meter } = this.#options;
    meter.end(vmId);
    await machines.end(vmId);
    await this.#volumes.close(vmId);
    await network.keepDenied(vmId);
    await network.release(vmId);
  }

  async destroy(vmId: string, isDeleted: boolean): Promise<void> {
    const { machines, network, meter } = this.#options;
    meter.end(vmId);
    // The slot is released only when no process can send on it.
    await machines.destroy(vmId);
    await this.#volumes.close(vmId);
    if (!isDeleted) await network.keepDenied(vmId);
    await network.release(vmId);
  }

  logPath(vmId: string, kind: 'console' | 'entrypoint'): string {
    return join(this.#options.logsFolder, vmId, `${kind}.log`);
  }

  /** Its use counts from now on. A sandbox that cannot be metered runs all the same. */
  async #meter(vmId: string): Promise<void> {
    const { machines, network, meter, log } = this.#options;
    try {
      const source = await machines.counterSource(vmId);
      const networkInterface = network.interfaceOf(vmId);
      if (source !== undefined && networkInterface !== undefined)
        meter.begin(vmId, { ...source, networkInterface });
    } catch (error) {
      log.warn({ vm: vmId, err: error }, 'the use of a sandbox cannot be recorded');
    }
  }

  #replaceSecrets({ vm_id: vmId, spec: { egress_secrets: secrets, env } }: Assignment): void {
    if (secrets !== undefined) this.#options.network.replaceSecrets(vmId, secrets.domains, env);
  }

  async #serveStores({ vm_id: vmId, spec: { object_stores: stores = [] } }: Assignment): Promise<void> {
    if (stores.length === 0 || (await this.#options.network.serveStores(vmId))) return;
    this.#options.log.warn({ vm: vmId }, 'a sandbox starts before its object stores are served');
  }

  #openLogs(vmId: string): Logs {
    return {
      console: new LogFile(this.logPath(vmId, 'console')),
      entrypoint: new LogFile(this.logPath(vmId, 'entrypoint')),
    };
  }

  async #live(
    assignment: Assignment,
    running: RunningVm,
    events: SandboxEvents,
    agent: AgentConnection,
    logs: Logs,
    vmIp: string,
    ports: PortMapping[],
    isFrozen = false,
  ): Promise<LiveSandbox> {
    const { machines, warm, meter, listenHost, log } = this.#options;
    const { vm_id: vmId, spec } = assignment;
    await this.#meter(vmId);
    setOomScore(running.vm.identity.pid, spec.spot ? 'spot' : 'guaranteed');
    return new LiveMachine({
      assignment,
      machines,
      running,
      isFrozen,
      agent,
      logs,
      addresses: { vm_ip: vmIp, host_ip: listenHost, port_map: ports },
      findImage: (manifest) => this.#roots.find(manifest),
      takeVmm: (wanted) => warm.takeVmm(wanted),
      onClockOff: () => events.onClockOff(),
      writtenMaxMib: machines.writtenMaxMib(sizeOf(spec), spec.volumes !== undefined),
      readCounters: () => meter.sample(vmId),
      log,
    });
  }
}

function sizeOf({ vcpus, mem_mib: memMib }: Assignment['spec']): GuestSize {
  return guestSize({ vcpus, memMib });
}
