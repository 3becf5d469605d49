import { openedChain } from '../disk/block-graph.ts';
import { belowTop, flushTop, isTopEmpty, readChain } from '../disk/disk-chain.ts';
import type { DiskChain } from '../disk/disk-chain.ts';
import { LiveLayer } from '../disk/live-layer.ts';
import { checkGuestHasSpace } from '../disk/vm-disks.ts';
import { findGuestMemory } from '../memory/guest-memory.ts';
import type { GuestMemory } from '../memory/guest-memory.ts';
import { failpoint } from '../failpoint.ts';
import { StateFile } from '../vmm/save-state.ts';
import type { RunningVm } from './boot-options.ts';
import { settled } from './settled.ts';
import type { VmRecord } from './vm-folder.ts';

/** What the guest's agent does for a capture. */
export interface GuestHold {
  /** Makes the freeze that follows a fast one. */
  rehearse(): Promise<void>;
  /** Brings what is only in the guest's memory to its disk, as far as that goes in a bounded time. */
  sync(): Promise<void>;
  /** Stops the user's processes, and with `flush` brings what they have written to the disk. */
  freeze(flush: boolean): Promise<void>;
  /** Lets them go on. Told right before the processors go on, it is done first. */
  thaw(): Promise<void>;
}

/** Captures a guest's memory: what takes long before the guest is paused, and the rest, with `take`, while it is. */
export interface MemoryCapture<M> extends AsyncDisposable {
  take(): Promise<M>;
  /** Right before the guest is paused. */
  approach?(): Promise<unknown>;
}

/** The guest that is captured. */
export interface SourceOptions {
  vmId: string;
  running: RunningVm;
  record: VmRecord;
  /** Folder of its disk. */
  disk: string;
  jail: string;
  persistent: boolean;
  hold: GuestHold;
  /** Lets the VMM have its memory once more while a copy of it exists. */
  allowCopy: (allowed: boolean) => Promise<void>;
  /** For failpoints. */
  operation: 'fork' | 'snapshot';
}

export interface CheckpointOptions<M> extends SourceOptions {
  /** Begins to capture its memory. The capture ends with the checkpoint. */
  captureMemory: (memory: GuestMemory) => Promise<MemoryCapture<M>>;
}

/** One moment of a guest that has long gone on: to be read, and let go of soon. */
export interface Checkpoint<M> extends AsyncDisposable {
  memory: M;
  /** As it was; none of it changes again. */
  disk: DiskChain;
  stateBytes: number;
  /** Milliseconds from the start of the freeze. */
  laps: Record<string, number>;
}

/**
 * Takes memory, devices and disk of a running guest at one moment. Everything that takes time is done before or
 * after: the guest is paused while its devices are saved, a layer is put on its disk and what is left of its memory is
 * captured.
 * @param statePath where the device state goes; must not exist
 * @throws when it cannot be; the guest goes on all the same
 */
export async function takeCheckpoint<M>(
  options: CheckpointOptions<M>,
  statePath: string,
): Promise<Checkpoint<M>> {
  const { running, record, jail, persistent, hold, allowCopy, captureMemory, operation } = options;
  const { vm } = running;
  const chain = await diskOf(options);
  await using prepared = new AsyncDisposableStack();
  await using brief = new AsyncDisposableStack();
  const memory = await findGuestMemory(vm.identity.pid, record.shape.memMib * 1024 * 1024);
  await allowCopy(true);
  // Let go of in the other order: the copy is gone before its room is.
  prepared.defer(async () => {
    if (!vm.exited) await allowCopy(false).catch(() => undefined);
  });
  const makeLayer = (): Promise<LiveLayer> =>
    LiveLayer.prepare(vm, chain, { jail, uid: record.uid, persistent });
  const [copy, state, layer] = await settled([
    captureMemory(memory).then((ready) => prepared.use(ready)),
    StateFile.prepare(vm, { root: jail, uid: record.uid }).then((ready) => brief.use(ready)),
    isTopEmpty(chain).then((empty) => (empty ? undefined : makeLayer())),
    // Stopping a guest flushes its disk: what has to wait for the platters waits for them now.
    flushTop(chain),
  ]);
  await copy.approach?.();
  // Last: what was done a moment ago is fast.
  await hold.rehearse();
  failpoint(`${operation}:prepared`);

  const clock = new Laps();
  let taken: [void, DiskChain, M];
  try {
    await hold.freeze(false);
    clock.lap('frozen');
    failpoint(`${operation}:frozen`);
    await vm.stop();
    clock.lap('stopped');
    failpoint(`${operation}:stopped`);
    taken = await settled([state.save(), layerOn(chain, layer, makeLayer), copy.take()]);
    clock.lap('taken');
    failpoint(`${operation}:taken`);
  } finally {
    // Both at once: the agent hears of it as soon as there is time again.
    await Promise.all([vm.continue(), hold.thaw()]);
  }
  clock.lap('thawed');
  const [, disk, twin] = taken;
  const stateBytes = await state.copyTo(statePath);
  const held = prepared.move();
  return {
    memory: twin,
    disk,
    stateBytes,
    laps: clock.laps,
    [Symbol.asyncDispose]: () => held.disposeAsync(),
  };
}

/**
 * Takes the disk alone. The guest's processes stand while what they wrote last is flushed and a layer is put on the
 * disk, however large it is.
 */
export async function takeDisk(
  options: SourceOptions,
): Promise<{ disk: DiskChain; laps: Record<string, number> }> {
  const { running, record, jail, persistent, hold, operation } = options;
  const chain = await diskOf(options);
  await hold.sync();
  const layer = await LiveLayer.prepare(running.vm, chain, { jail, uid: record.uid, persistent });
  await hold.rehearse();
  failpoint(`${operation}:prepared`);
  const clock = new Laps();
  let disk: DiskChain;
  try {
    await hold.freeze(true);
    clock.lap('frozen');
    failpoint(`${operation}:frozen`);
    disk = await layer.putOnTop();
    clock.lap('taken');
    failpoint(`${operation}:taken`);
  } finally {
    await hold.thaw();
  }
  clock.lap('thawed');
  return { disk, laps: clock.laps };
}

/**
 * What of a disk never changes again, of a guest that stands. A layer that nothing was written to stays on top: sources
 * that write nothing between captures do not grow.
 */
async function layerOn(
  chain: DiskChain,
  layer: LiveLayer | undefined,
  make: () => Promise<LiveLayer>,
): Promise<DiskChain> {
  if (layer === undefined && (await isTopEmpty(chain))) return belowTop(chain);
  return await (layer ?? (await make())).putOnTop();
}

async function diskOf({ vmId, running, disk }: SourceOptions): Promise<DiskChain> {
  await checkGuestHasSpace(running.vm);
  const chain = await readChain(disk);
  if (chain === undefined) throw new Error(`the disk of VM ${vmId} is not on this machine any more`);
  return await openedChain(running.vm, chain);
}

class Laps {
  readonly laps: Record<string, number> = {};
  readonly #began = performance.now();

  lap(name: string): void {
    this.laps[name] = Math.round((performance.now() - this.#began) * 10) / 10;
  }
}
