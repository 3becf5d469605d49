import type { Logger } from 'pino';
import type { Assignment, Observation } from './assignment.ts';
import { GuestLostError } from '../machine/index.ts';
import type { ForkOrigin, SnapshotFacts } from '../machine/index.ts';
import { racePoint } from '../race-point.ts';
import { adopt } from './adoption.ts';
import { canStart, DISK_GONE, messageOf, observePaused, requireDisk } from './remains.ts';
import type { Exit, LiveSandbox, SandboxEvents, SandboxHost } from './sandbox-host.ts';
import type { RecordStore, SandboxRecord } from './sandbox-record.ts';
import { SandboxState } from './sandbox-state.ts';
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
 * What cannot be had is answered with what is instead (docs/runner-protocol.md): a sandbox that could not be paused runs,
 * one that could not be resumed or started is paused or stopped, as long as nothing of it is lost.
 */
export class Sandbox {
  readonly vmId: string;
  readonly #deps: SandboxDeps;
  readonly #log: Logger;
  readonly #state: SandboxState;
  readonly #steps: Steps;
  #live: LiveSandbox | undefined;
  /** Of the VMM that ended by itself, from when it did until all of it is removed. */
  #exit: Exit | undefined;
  /** Aborted once it is to be deleted, which is for good. */
  readonly #deletion = new AbortController();
  #tidying = false;

  constructor(deps: SandboxDeps, assignment: Assignment, record?: SandboxRecord) {
    this.vmId = assignment.vm_id;
    this.#deps = deps;
    this.#log = deps.log.child({ vm: assignment.vm_id });
    this.#state = new SandboxState({ ...deps, log: this.#log }, assignment, record);
    this.#steps = new Steps(this.#log, () => {
      this.#attendExit();
      this.#tidyDisk();
    });
  }

  get live(): LiveSandbox | undefined {
    return this.#live;
  }

  get observation(): Observation {
    return this.#state.observation;
  }

  get isRunning(): boolean {
    return this.#state.observation.status === 'running' && this.#live !== undefined;
  }

  get isPersistent(): boolean {
    return this.#state.isPersistent;
  }

  /**
   * Whether this end is the last word: nothing newer is wanted, and no step is on its way to it. One that has a disk
   * has ended only when it is deleted.
   */
  isOver({ generation, status }: Observation): boolean {
    if (status !== 'deleted' && (status !== 'failed' || this.isPersistent)) return false;
    const now = this.observation;
    return (
      now.status === status &&
      now.generation === generation &&
      this.#state.assignment.generation === generation &&
      !this.#steps.busy
    );
  }

  /** Takes over what control wants. An older generation, or the same again, changes nothing. */
  want(assignment: Assignment): void {
    if (assignment.generation < this.#state.assignment.generation) return;
    const isNew = assignment.generation > this.#state.assignment.generation;
    this.#state.assignment = assignment;
    if (assignment.desired === 'deleted') this.#deletion.abort(new Error('the sandbox is to be deleted'));
    if (!isNew && this.#steps.busy) return;
    if (!isNew && this.#state.isSettled(this.#live !== undefined)) {
      this.#state.repeat();
      return;
    }
    this.converge();
  }

  /** After a restart of the runner: find the VMM again, or clean up after it. */
  async adopt(): Promise<void> {
    this.#steps.begin(() =>
      adopt({
        state: this.#state,
        host: this.#deps.host,
        findAgain: () => this.#findAgain(),
        end: () => this.#end(),
        destroy: () => this.#destroy(),
      }),
    );
    await this.idle();
  }

  /** Starts the step that leads to what is wanted; the one that runs is interrupted first. */
  converge(): void {
    this.#steps.begin(async (signal) => {
      this.#state.served = this.#state.assignment;
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
    if (this.#state.isSettled(this.#live !== undefined) && this.#state.observation.status !== 'running')
      return;
    this.#steps.begin(async () => await this.#drain(reason));
    await this.idle();
  }

  /** Whether bytes may lie here that outlive its VM. */
  get hasPersistentBytes(): boolean {
    return this.isPersistent && this.#state.observation.status !== 'deleted';
  }

  /**
   * Control does not name it any more: its VM ends, and of a persistent one only what outlives that stays.
   * @throws when something of it could not be removed; to be called again then
   */
  async leave(): Promise<void> {
    const reason = 'control does not name this sandbox any more';
    await this.#steps.interrupt(reason);
    await this.#steps.hold(async () => {
      if (!this.hasPersistentBytes) return await this.#destroy();
      const { status } = this.#state.observation;
      if (status === 'running' || !this.#state.isSettled(this.#live !== undefined)) await this.#drain(reason);
      await this.#end();
    });
  }

  /** Lets go of the VM without ending it: a later runner takes it over. */
  async detach(): Promise<void> {
    await this.#steps.interrupt('the runner stops');
    await this.#live?.close();
    this.#live = undefined;
  }

  async #converge(signal: AbortSignal): Promise<void> {
    switch (this.#state.served.desired) {
      case 'running':
        return await this.#run(signal);
      case 'stopped':
        return await this.#stop();
      case 'paused':
        return await this.#pause(signal);
      case 'deleted':
        return await this.#delete();
    }
  }

  async #run(signal: AbortSignal): Promise<void> {
    if (this.#live) return await this.#state.observe('running', this.#live.addresses);
    if (!(await this.#seeded(signal))) return;
    if (this.#live) return;
    if (this.#state.served.start_from === 'memory') return await this.#resume(signal);
    await this.#boot(signal);
  }

  /**
   * Gets what it begins with, where that is another sandbox or a snapshot, unless it has. The fork of a sandbox that runs
   * does so itself afterwards.
   * @returns false when it cannot be had
   */
  async #seeded(signal: AbortSignal): Promise<boolean> {
    const { host } = this.#deps;
    const { origin } = this.#state.served.spec;
    if (origin === undefined || !this.isPersistent || this.#state.past.manifest !== undefined) return true;
    if ((await host.remains(this.vmId)).disk) return true;
    try {
      // Nothing may exist here that no record names; control hears of it when it has what it begins with.
      await this.#state.observe('booting', {}, false);
      racePoint(`${origin.type === 'fork' ? 'fork' : 'restore'}:recorded`);
      if (origin.type === 'fork') await this.#beginAsFork(origin.vm_id, signal);
      else {
        await host.seed(this.vmId, origin);
        this.#state.past.manifest = await host.manifestOf(origin.snapshot_id);
      }
      return true;
    } catch (error) {
      this.#state.past.manifest = undefined;
      await this.#destroy();
      if (signal.aborted) return false;
      this.#log.warn({ err: error, origin }, 'the sandbox could not begin as what it is to be');
      await this.#state.observe('failed', { error: messageOf(error) });
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
        this.#state.past.manifest = source.#state.past.manifest;
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
    await this.#state.observe('booting');
    const bootSignal = AbortSignal.any([signal, AbortSignal.timeout(BOOT_DEADLINE_MS)]);
    this.#live = await host.continueFork(
      this.#state.served,
      origin,
      this.#state.past,
      this.#events(),
      bootSignal,
    );
    if (this.#state.served.desired !== 'running') return;
    await this.#state.observe('running', this.#live.addresses);
    racePoint('fork:running');
  }

  /** Takes it, as it runs, for later. Its steps wait. @throws when it does not run */
  async snapshot(id: string, kind: 'disk' | 'full', parentId: string | undefined): Promise<SnapshotFacts> {
    return await this.#steps.hold(async () => {
      const { manifest } = this.#state.past;
      if (!this.#live || manifest === undefined) {
        throw new Error(`the sandbox is ${this.#state.observation.status}, and must be running`);
      }
      return await this.#live.snapshot(id, kind, manifest, parentId);
    });
  }

  /** Its guest's clock may not be that of the host any more. Between two steps: what one has frozen must stay so. */
  setClock(): void {
    if (this.#live === undefined) return;
    this.#steps
      .hold(async (signal) => await this.#live?.setClock(signal))
      .catch((error: unknown) => this.#log.warn({ err: error }, 'the clock of a guest could not be set'));
  }

  async #boot(signal: AbortSignal): Promise<void> {
    const { host } = this.#deps;
    const { root, origin } = this.#state.served.spec;
    this.#state.past.manifest ??= this.#state.served.spec.disk_manifest;
    const operation = this.#state.past.manifest === undefined ? 'create' : 'start';
    try {
      const manifest =
        this.#state.past.manifest ??
        (origin?.type === 'snapshot' ? await host.manifestOf(origin.snapshot_id) : undefined);
      await this.#state.observe((await host.hasImage(root, manifest)) ? 'booting' : 'building');
      racePoint(`${operation}:recorded`);
      const imageSignal = AbortSignal.any([signal, AbortSignal.timeout(IMAGE_DEADLINE_MS)]);
      using image = await host.acquireImage(root, imageSignal, manifest, origin);
      if (this.#state.observation.status === 'building') await this.#state.observe('booting');
      racePoint(`${operation}:image`);
      const bootSignal = AbortSignal.any([signal, AbortSignal.timeout(BOOT_DEADLINE_MS)]);
      if (this.isPersistent) {
        await host.discardMemory(this.#state.served, this.#state.past, bootSignal);
        racePoint(`${operation}:discarded`);
        // An empty disk in the place of a lost one would look like a sandbox that works.
        if (operation === 'start') await requireDisk(this.#state, this.#deps.host);
      }
      this.#live = await host.boot(this.#state.served, image, this.#state.past, this.#events(), bootSignal);
      racePoint(`${operation}:booted`);
      signal.throwIfAborted();
      this.#state.past.manifest = image.digest;
      await this.#state.observe('running', this.#live.addresses);
      racePoint(`${operation}:running`);
    } catch (error) {
      await this.#end();
      if (signal.aborted) return;
      this.#log.warn({ err: error }, 'the sandbox could not be started');
      await this.#state.observe((await canStart(this.#state, this.#deps.host)) ? 'stopped' : 'failed', {
        error: messageOf(error),
      });
    }
  }

  async #resume(signal: AbortSignal): Promise<void> {
    const { host } = this.#deps;
    try {
      await this.#state.observe('booting');
      racePoint('resume:recorded');
      const bootSignal = AbortSignal.any([signal, AbortSignal.timeout(BOOT_DEADLINE_MS)]);
      this.#live = await host.resume(this.#state.served, this.#state.past, this.#events(), bootSignal);
      await this.#state.observe('running', this.#live.addresses);
      racePoint('resume:running');
    } catch (error) {
      await this.#end();
      if (signal.aborted) return;
      this.#log.warn({ err: error }, 'the sandbox could not be resumed');
      await observePaused(this.#state, this.#deps.host, messageOf(error));
    }
  }

  async #stop(): Promise<void> {
    const { host } = this.#deps;
    const { memory } = await host.remains(this.vmId);
    if (this.#live || memory) await this.#state.observe('stopping');
    racePoint('stop:recorded');
    // What supersedes a stop waits for its end, but for a deletion: nobody needs that disk to be in order.
    const hurry = this.#deletion.signal;
    if (this.#live) await this.#live.shutDown(STOP_GRACE_MS, hurry);
    else if (memory) await host.discardMemory(this.#state.served, this.#state.past, hurry);
    racePoint('stop:down');
    await this.#end();
    racePoint('stop:ended');
    if (this.#state.past.manifest !== undefined && !(await host.remains(this.vmId)).disk) {
      return await this.#state.observe('failed', { error: DISK_GONE });
    }
    await this.#state.observe('stopped');
    racePoint('stop:stopped');
  }

  async #pause(signal: AbortSignal): Promise<void> {
    if (!this.#live && !(await this.#seeded(signal))) return;
    if (!this.#live) {
      await this.#end();
      return await observePaused(this.#state, this.#deps.host);
    }
    if (this.#state.served.spec.docker_data_mib !== undefined) {
      const error = 'a sandbox with a Docker data device cannot be paused';
      return await this.#state.observe('running', { ...this.#live.addresses, error });
    }
    await this.#state.observe('pausing');
    racePoint('pause:recorded');
    try {
      await this.#live.suspend();
      racePoint('pause:ended');
      await this.#release();
      await this.#state.observe('paused');
      racePoint('pause:paused');
    } catch (error) {
      this.#log.warn({ err: error }, 'the sandbox could not be paused');
      if (!(error instanceof GuestLostError) && this.#live && !this.#exit) {
        return await this.#state.observe('running', { ...this.#live.addresses, error: messageOf(error) });
      }
      const exit = this.#exit;
      await this.#end();
      if ((await this.#deps.host.remains(this.vmId)).memory) await this.#state.observe('paused');
      else await this.#observeExit({ guestEnd: exit?.guestEnd, reason: messageOf(error) });
    }
    await this.#end();
  }

  async #delete(): Promise<void> {
    await this.#state.observe('deleting');
    racePoint('delete:recorded');
    await this.#destroy();
    racePoint('delete:destroyed');
    await this.#state.observe('deleted');
  }

  async #drain(error: string): Promise<void> {
    if (this.isPersistent) {
      await this.#live?.shutDown(STOP_GRACE_MS, AbortSignal.timeout(DRAIN_DEADLINE_MS));
    }
    await this.#end();
    if (this.isPersistent && (await this.#deps.host.remains(this.vmId)).memory) {
      return await this.#state.observe('paused', { error });
    }
    await this.#state.observe((await canStart(this.#state, this.#deps.host)) ? 'stopped' : 'failed', {
      error,
    });
  }

  async #findAgain(): Promise<boolean> {
    try {
      this.#live = await this.#deps.host.adopt(this.#state.assignment, this.#state.past, this.#events());
      this.#log.info('adopted a running micro-VM');
      return true;
    } catch (error) {
      this.#log.warn({ err: error }, 'the micro-VM could not be adopted');
      return false;
    }
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

  #events(): SandboxEvents {
    this.#exit = undefined;
    return {
      onExit: (exit) => {
        this.#exit = exit;
        this.#attendExit();
      },
      onStood: () => this.setClock(),
    };
  }

  /** A VM that ended by itself; while a step runs that is the step's to find out. */
  #attendExit(): void {
    const exit = this.#exit;
    if (!exit || !this.#live || this.#steps.busy) return;
    this.#log.warn(exit, 'the micro-VM ended by itself');
    this.#steps.begin(async () => {
      await this.#end();
      await this.#observeExit(exit);
    });
  }

  /** A guest that has ended itself has lost nothing that was on its disk. */
  async #observeExit({ guestEnd, reason }: Exit): Promise<void> {
    const goesOn = guestEnd !== undefined && (await canStart(this.#state, this.#deps.host));
    await this.#state.observe(goesOn ? 'stopped' : 'failed', { error: guestEnd ?? reason });
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
}
