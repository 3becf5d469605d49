import type { Assignment, Observation, ObservedStatus } from '@releap/contract';
import type { Logger } from 'pino';
import { GuestLostError } from '../machine/index.ts';
import type { ForkOrigin, SnapshotFacts } from '../machine/index.ts';
import { racePoint } from '../race-point.ts';
import type { Exit, LiveSandbox, Past, SandboxEvents, SandboxHost } from './sandbox-host.ts';
import type { RecordStore, SandboxRecord } from './sandbox-record.ts';
import { Steps } from './steps.ts';

/** From the first step to `running`, pulls not included. Twice what a cold boot takes under emulation. */
const BOOT_DEADLINE_MS = 90_000;
/** A pull or build of the root image; the registry client has deadlines of its own below this. */
const IMAGE_DEADLINE_MS = 30 * 60_000;
/** What an entrypoint has to end after it was asked to. */
const STOP_GRACE_MS = 10_000;
/** For all of a stop while the service goes down: others wait for that. */
const DRAIN_DEADLINE_MS = 25_000;

export interface SandboxDeps {
  host: SandboxHost;
  /** Another sandbox of this machine. */
  find: (vmId: string) => Sandbox | undefined;
  records: RecordStore;
  report: (observation: Observation) => void;
  log: Logger;
}

/**
 * One sandbox on this machine: makes what is agree with what must be, one step after the other. Steps never
 * overlap; a newer assignment interrupts the step that runs. Every step may be repeated after a crash.
 *
 * What cannot be had is answered with what is instead (`runner-link.ts`): a sandbox that could not be paused runs,
 * one that could not be resumed or started is paused or stopped, as long as nothing of it is lost.
 */
export class Sandbox {
  readonly vmId: string;
  readonly #deps: SandboxDeps;
  readonly #log: Logger;
  #assignment: Assignment;
  /** The assignment that the step at work, or else the last one, is for: what it observes belongs to that. */
  #served: Assignment;
  #observation: Observation;
  #past: Past;
  #live: LiveSandbox | undefined;
  /** Of the VMM that ended by itself, from when it did until all of it is removed. */
  #exit: Exit | undefined;
  readonly #steps: Steps;
  #tidying = false;

  constructor(deps: SandboxDeps, assignment: Assignment, record?: SandboxRecord) {
    this.vmId = assignment.vm_id;
    this.#deps = deps;
    this.#log = deps.log.child({ vm: assignment.vm_id });
    this.#steps = new Steps(this.#log, () => {
      this.#attendExit();
      this.#tidyDisk();
    });
    this.#assignment = assignment;
    this.#served = assignment;
    this.#past = { manifest: record?.manifest, ports: record?.ports };
    this.#observation = record?.observation ?? {
      vm_id: assignment.vm_id,
      generation: assignment.generation,
      status: 'booting',
    };
  }

  get live(): LiveSandbox | undefined {
    return this.#live;
  }

  get observation(): Observation {
    return this.#observation;
  }

  get isRunning(): boolean {
    return this.#observation.status === 'running' && this.#live !== undefined;
  }

  get isPersistent(): boolean {
    return this.#assignment.spec.persistent;
  }

  /**
   * Whether this end is the last word: nothing newer is wanted, and no step is on its way to it. One that has a disk
   * has ended only when it is deleted.
   */
  isOver({ generation, status }: Observation): boolean {
    if (status !== 'deleted' && (status !== 'failed' || this.isPersistent)) return false;
    const now = this.#observation;
    return (
      now.status === status &&
      now.generation === generation &&
      this.#assignment.generation === generation &&
      !this.#steps.busy
    );
  }

  /** Takes over what control wants. An older generation, or the same again, changes nothing. */
  want(assignment: Assignment): void {
    if (assignment.generation < this.#assignment.generation) return;
    const isNew = assignment.generation > this.#assignment.generation;
    this.#assignment = assignment;
    if (!isNew && this.#steps.busy) return;
    if (!isNew && this.#isSettled()) {
      this.#deps.report(this.#observation);
      return;
    }
    this.converge();
  }

  /** After a restart of the runner: find the VMM again, or clean up after it. */
  async adopt(): Promise<void> {
    this.#steps.begin(
      async () => await (this.isPersistent ? this.#adoptPersistent() : this.#adoptEphemeral()),
    );
    await this.idle();
  }

  /** Starts the step that leads to what is wanted; the one that runs is interrupted first. */
  converge(): void {
    this.#steps.begin(async (signal) => {
      this.#served = this.#assignment;
      await this.#converge(signal);
    });
  }

  /** Resolves when no step runs. */
  async idle(): Promise<void> {
    await this.#steps.idle();
  }

  /** The service is going down: end the VM and say why. What is persistent can be started again. */
  async shutDown(reason: string): Promise<void> {
    await this.#steps.interrupt(reason);
    if (this.#isSettled() && this.#observation.status !== 'running') return;
    this.#steps.begin(async () => await this.#drain(reason));
    await this.idle();
  }

  /** Nobody wants it any more: all of it goes, its disk too. */
  async remove(): Promise<void> {
    this.#steps.begin(async () => await this.#destroy());
    await this.idle();
  }

  /** Lets go of the VM without ending it: a later runner takes it over. */
  async detach(): Promise<void> {
    await this.#steps.interrupt('the runner stops');
    await this.#live?.close();
    this.#live = undefined;
  }

  async #converge(signal: AbortSignal): Promise<void> {
    switch (this.#served.desired) {
      case 'running':
        return await this.#run(signal);
      case 'stopped':
        return await this.#stop(signal);
      case 'paused':
        return await this.#pause(signal);
      case 'deleted':
        return await this.#delete();
    }
  }

  async #run(signal: AbortSignal): Promise<void> {
    if (this.#live) return await this.#observe('running', this.#live.addresses);
    if (!(await this.#seeded(signal))) return;
    if (this.#live) return;
    if (this.#served.start_from === 'memory') return await this.#resume(signal);
    await this.#boot(signal);
  }

  /**
   * Gets what it begins with, where that is another sandbox or a snapshot, unless it has. The fork of a sandbox that runs
   * does so itself afterwards.
   * @returns false when it cannot be had
   */
  async #seeded(signal: AbortSignal): Promise<boolean> {
    const { host } = this.#deps;
    const { origin } = this.#served.spec;
    if (origin === undefined || !this.isPersistent || this.#past.manifest !== undefined) return true;
    if ((await host.remains(this.vmId)).disk) return true;
    try {
      // Nothing may exist here that no record names; control hears of it when it has what it begins with.
      await this.#observe('booting', {}, false);
      racePoint(`${origin.type === 'fork' ? 'fork' : 'restore'}:recorded`);
      if (origin.type === 'fork') await this.#beginAsFork(origin.vm_id, signal);
      else {
        await host.seed(this.vmId, origin);
        this.#past.manifest = await host.manifestOf(origin.snapshot_id);
      }
      return true;
    } catch (error) {
      this.#past.manifest = undefined;
      await this.#destroy();
      if (signal.aborted) return false;
      this.#log.warn({ err: error, origin }, 'the sandbox could not begin as what it is to be');
      await this.#observe('failed', { error: messageOf(error) });
      return false;
    }
  }

  async #beginAsFork(sourceId: string, signal: AbortSignal): Promise<void> {
    const { host, find } = this.#deps;
    const source = find(sourceId);
    if (source === undefined) throw new Error('the sandbox that it is a fork of is not on this machine');
    const begun = Promise.withResolvers<ForkOrigin | undefined>();
    source.#steps
      .hold(async () => {
        signal.throwIfAborted();
        this.#past.manifest = source.#past.manifest;
        if (source.#live) {
          const origin = await source.#live.fork(this.vmId);
          begun.resolve(origin);
          // The child goes on; the source's next step waits until nothing of it is needed any more.
          await origin.copied;
        } else {
          await host.seed(this.vmId, { type: 'fork', vm_id: sourceId });
          begun.resolve(undefined);
        }
      })
      .catch((error: unknown) => begun.reject(error));
    await using origin = await begun.promise;
    if (origin === undefined) return;
    await this.#observe('booting');
    const bootSignal = AbortSignal.any([signal, AbortSignal.timeout(BOOT_DEADLINE_MS)]);
    this.#live = await host.continueFork(this.#served, origin, this.#past, this.#events(), bootSignal);
    if (this.#served.desired !== 'running') return;
    await this.#observe('running', this.#live.addresses);
    racePoint('fork:running');
  }

  /** Takes it, as it runs, for later. Its steps wait. @throws when it does not run */
  async snapshot(id: string, kind: 'disk' | 'full', parentId: string | undefined): Promise<SnapshotFacts> {
    return await this.#steps.hold(async () => {
      const { manifest } = this.#past;
      if (!this.#live || manifest === undefined) {
        throw new Error(`the sandbox is ${this.#observation.status}, and must be running`);
      }
      return await this.#live.snapshot(id, kind, manifest, parentId);
    });
  }

  async #boot(signal: AbortSignal): Promise<void> {
    const { host } = this.#deps;
    const { root, origin } = this.#served.spec;
    const operation = this.#past.manifest === undefined ? 'create' : 'start';
    try {
      const manifest =
        this.#past.manifest ??
        (origin?.type === 'snapshot' ? await host.manifestOf(origin.snapshot_id) : undefined);
      await this.#observe((await host.hasImage(root, manifest)) ? 'booting' : 'building');
      racePoint(`${operation}:recorded`);
      const imageSignal = AbortSignal.any([signal, AbortSignal.timeout(IMAGE_DEADLINE_MS)]);
      using image = await host.acquireImage(root, imageSignal, manifest, origin);
      if (this.#observation.status === 'building') await this.#observe('booting');
      racePoint(`${operation}:image`);
      const bootSignal = AbortSignal.any([signal, AbortSignal.timeout(BOOT_DEADLINE_MS)]);
      if (this.isPersistent) {
        await host.discardMemory(this.#served, this.#past, bootSignal);
        racePoint(`${operation}:discarded`);
        if (this.#past.manifest !== undefined) await this.#requireDisk();
      }
      this.#live = await host.boot(this.#served, image, this.#past, this.#events(), bootSignal);
      racePoint(`${operation}:booted`);
      signal.throwIfAborted();
      this.#past.manifest = image.digest;
      await this.#observe('running', this.#live.addresses);
      racePoint(`${operation}:running`);
    } catch (error) {
      await this.#end();
      if (signal.aborted) return;
      this.#log.warn({ err: error }, 'the sandbox could not be started');
      await this.#observe((await this.#canStart()) ? 'stopped' : 'failed', { error: messageOf(error) });
    }
  }

  async #resume(signal: AbortSignal): Promise<void> {
    const { host } = this.#deps;
    try {
      await this.#observe('booting');
      racePoint('resume:recorded');
      const bootSignal = AbortSignal.any([signal, AbortSignal.timeout(BOOT_DEADLINE_MS)]);
      this.#live = await host.resume(this.#served, this.#past, this.#events(), bootSignal);
      await this.#observe('running', this.#live.addresses);
      racePoint('resume:running');
    } catch (error) {
      await this.#end();
      if (signal.aborted) return;
      this.#log.warn({ err: error }, 'the sandbox could not be resumed');
      await this.#observePaused(messageOf(error));
    }
  }

  async #stop(signal: AbortSignal): Promise<void> {
    const { host } = this.#deps;
    const { memory } = await host.remains(this.vmId);
    if (this.#live || memory) await this.#observe('stopping');
    racePoint('stop:recorded');
    // What supersedes a stop waits for its end, but for a deletion: nobody needs that disk to be in order.
    using hurry = this.#onDeletion(signal);
    if (this.#live) await this.#live.shutDown(STOP_GRACE_MS, hurry.signal);
    else if (memory) await host.discardMemory(this.#served, this.#past, hurry.signal);
    racePoint('stop:down');
    await this.#end();
    racePoint('stop:ended');
    if (this.#past.manifest !== undefined && !(await host.remains(this.vmId)).disk) {
      return await this.#observe('failed', { error: DISK_GONE });
    }
    await this.#observe('stopped');
    racePoint('stop:stopped');
  }

  async #pause(signal: AbortSignal): Promise<void> {
    if (!this.#live && !(await this.#seeded(signal))) return;
    if (!this.#live) {
      await this.#end();
      return await this.#observePaused();
    }
    if (this.#served.spec.docker_data_mib !== undefined) {
      const error = 'a sandbox with a Docker data device cannot be paused';
      return await this.#observe('running', { ...this.#live.addresses, error });
    }
    await this.#observe('pausing');
    racePoint('pause:recorded');
    try {
      await this.#live.suspend();
      racePoint('pause:ended');
      await this.#release();
      await this.#observe('paused');
      racePoint('pause:paused');
    } catch (error) {
      this.#log.warn({ err: error }, 'the sandbox could not be paused');
      if (!(error instanceof GuestLostError) && this.#live && !this.#exit) {
        return await this.#observe('running', { ...this.#live.addresses, error: messageOf(error) });
      }
      await this.#end();
      const { memory } = await this.#deps.host.remains(this.vmId);
      await (memory ? this.#observe('paused') : this.#observe('failed', { error: messageOf(error) }));
    }
    await this.#end();
  }

  async #delete(): Promise<void> {
    await this.#observe('deleting');
    racePoint('delete:recorded');
    await this.#destroy();
    racePoint('delete:destroyed');
    await this.#observe('deleted');
  }

  async #drain(error: string): Promise<void> {
    if (this.isPersistent) {
      await this.#live?.shutDown(STOP_GRACE_MS, AbortSignal.timeout(DRAIN_DEADLINE_MS));
    }
    await this.#end();
    if (this.isPersistent && (await this.#deps.host.remains(this.vmId)).memory) {
      return await this.#observe('paused', { error });
    }
    await this.#observe((await this.#canStart()) ? 'stopped' : 'failed', { error });
  }

  async #adoptEphemeral(): Promise<void> {
    if (this.#observation.status === 'running') {
      if (await this.#findAgain()) return;
      await this.#end();
      await this.#observe('failed', { error: 'the micro-VM ended while the runner was not running' });
    } else if (!this.#isSettled()) {
      await this.#end();
    }
  }

  /** Finds out what the last runner left, in whatever step it ended, and makes a whole thing of it. */
  async #adoptPersistent(): Promise<void> {
    const { status } = this.#observation;
    const { origin } = this.#assignment.spec;
    const remains = await this.#deps.host.remains(this.vmId);
    const mayRun =
      !remains.memory &&
      (['running', 'pausing', 'stopping'].includes(status) || (status === 'booting' && remains.resumed));
    if (mayRun && (await this.#findAgain())) return;
    await this.#end();
    if (status === 'booting' && (origin?.type === 'fork' || (origin && this.#past.manifest === undefined))) {
      // It was being made from something else: memory of a source that went with the last runner, or a snapshot of
      // which some is here and nobody knows how much. It begins again.
      this.#past.manifest = undefined;
      return await this.#destroy();
    }
    // Kept memory is the truth about being paused, however far the runner had come.
    if ((status === 'pausing' || status === 'running') && remains.memory)
      return await this.#observe('paused');
    if (status === 'stopping') return remains.memory ? undefined : await this.#observe('stopped');
    if (status === 'booting' && remains.resumed && !remains.memory) {
      return await this.#observePaused('it ended while it was being resumed');
    }
    if (status !== 'running' && status !== 'pausing') return;
    if (remains.hostRestarted && (await this.#canStart())) {
      return await this.#observe('stopped', { error: 'its host was restarted' });
    }
    await this.#observe('failed', { error: 'the micro-VM ended while the runner was not running' });
  }

  async #findAgain(): Promise<boolean> {
    try {
      this.#live = await this.#deps.host.adopt(this.#assignment, this.#past, this.#events());
      this.#log.info('adopted a running micro-VM');
      return true;
    } catch (error) {
      this.#log.warn({ err: error }, 'the micro-VM could not be adopted');
      return false;
    }
  }

  /** Of a sandbox that does not run. @param error why it does not, if it was to */
  async #observePaused(error?: string): Promise<void> {
    const { host } = this.#deps;
    const { disk, memory } = await host.remains(this.vmId);
    if (!disk) return await this.#observe('failed', { error: DISK_GONE });
    if (!memory) {
      const why = error ?? 'it did not run when it was to be paused';
      return await this.#observe('paused', { memory: false, error: why });
    }
    try {
      await host.checkMemory(this.vmId);
    } catch (unusable) {
      return await this.#observe('paused', { memory: false, error: messageOf(unusable) });
    }
    await this.#observe('paused', error === undefined ? {} : { error });
  }

  async #requireDisk(): Promise<void> {
    if (!(await this.#deps.host.remains(this.vmId)).disk) throw new Error(DISK_GONE);
  }

  /** Whether it has run and its disk is here. */
  async #canStart(): Promise<boolean> {
    if (!this.isPersistent || this.#past.manifest === undefined) return false;
    return (await this.#deps.host.remains(this.vmId)).disk;
  }

  /** The VM and all that was made for it goes; what is kept of a persistent sandbox stays. */
  async #end(): Promise<void> {
    await this.#release();
    await (this.isPersistent ? this.#deps.host.end(this.vmId) : this.#deps.host.destroy(this.vmId));
  }

  async #destroy(): Promise<void> {
    await this.#release();
    await this.#deps.host.destroy(this.vmId);
  }

  async #release(): Promise<void> {
    const live = this.#live;
    this.#live = undefined;
    this.#exit = undefined;
    await live?.close();
  }

  #onDeletion(signal: AbortSignal): { signal: AbortSignal; [Symbol.dispose]: () => void } {
    const controller = new AbortController();
    const look = (): void => {
      if (this.#assignment.desired === 'deleted') controller.abort(signal.reason);
    };
    signal.addEventListener('abort', look);
    return {
      signal: controller.signal,
      [Symbol.dispose]: () => signal.removeEventListener('abort', look),
    };
  }

  #events(): SandboxEvents {
    this.#exit = undefined;
    return {
      onExit: (exit) => {
        this.#exit = exit;
        this.#attendExit();
      },
    };
  }

  /** A VM that ended by itself; while a step runs that is the step's to find out. */
  #attendExit(): void {
    const exit = this.#exit;
    if (!exit || !this.#live || this.#steps.busy) return;
    this.#log.warn(exit, 'the micro-VM ended by itself');
    this.#steps.begin(async () => {
      await this.#end();
      if (exit.poweredOff && (await this.#canStart())) {
        await this.#observe('stopped', { error: 'the guest powered itself off' });
      } else {
        await this.#observe('failed', { error: exit.reason });
      }
    });
  }

  /** In the background; what it does to the disk in use comes between two steps. */
  #tidyDisk(): void {
    const live = this.#live;
    if (live === undefined || this.#tidying) return;
    this.#tidying = true;
    live
      .tidyDisk((work) => this.#steps.hold(work))
      .catch((error: unknown) => {
        if (this.#live === live) this.#log.warn({ err: error }, 'the disk stays many layers');
      })
      .finally(() => {
        this.#tidying = false;
      });
  }

  #isSettled(): boolean {
    const { status, generation } = this.#observation;
    if (generation !== this.#assignment.generation) return false;
    if (status === 'running') return this.#live !== undefined;
    return ['failed', 'deleted', 'stopped', 'paused'].includes(status);
  }

  /**
   * On disk first, then said: what control hears, a restarted runner still knows. Where the disk is full it is said
   * all the same, for a sandbox must not hang between two states; a restarted runner then finds out by looking. Only
   * what begins needs its record: nothing may exist here that no record names.
   */
  async #observe(status: ObservedStatus, more: Partial<Observation> = {}, tell = true): Promise<void> {
    const { manifest } = this.#past;
    if (more.port_map !== undefined) this.#past.ports = more.port_map;
    this.#observation = {
      vm_id: this.vmId,
      generation: this.#served.generation,
      status,
      ...(manifest !== undefined && TELLS_MANIFEST.has(status) ? { manifest_name: manifest } : {}),
      ...more,
    };
    const record = { assignment: this.#assignment, observation: this.#observation, ...this.#past };
    try {
      await this.#deps.records.save(record);
    } catch (error) {
      if (status === 'building' || status === 'booting') throw error;
      this.#log.error({ err: error, status }, 'the record of the sandbox could not be written');
    }
    if (tell) this.#deps.report(this.#observation);
  }
}

const TELLS_MANIFEST: ReadonlySet<ObservedStatus> = new Set(['running', 'stopped', 'paused']);
const DISK_GONE = 'its disk is not on this machine any more';

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
