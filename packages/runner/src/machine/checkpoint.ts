import { belowTop, flushTop, isTopEmpty, readChain } from '../disk/disk-chain.ts';
import type { DiskChain } from '../disk/disk-chain.ts';
import { findGuestMemory } from '../memory/guest-memory.ts';
import type { GuestMemory } from '../memory/guest-memory.ts';
import type { Precopy } from '../memory/precopy.ts';
import { failpoint } from '../failpoint.ts';
import type { PrecopyTuning } from '../vmm/tuning.ts';
import type { RunningVm } from './boot-options.ts';
import { allSettled } from './all-settled.ts';
import { checkGuestHasSpace } from './guest-space.ts';
import { openedChain, prepareLayer } from './live-disk.ts';
import type { LiveLayer } from './live-disk.ts';
import { Stopwatch } from './stopwatch.ts';
import type { VmRecord } from './vm-folder.ts';

/** What a capture needs of the guest's agent. */
export interface GuestHold {
  /** Warms up the code paths of a freeze, so that the next freeze is fast. */
  warmUp(): Promise<void>;
  /** Writes the guest's dirty pages to its disk, within a bounded time. */
  sync(): Promise<void>;
  /** Freezes the user's processes, and with `flush` writes their dirty pages to the disk. */
  freeze(flush: boolean): Promise<void>;
  /** Thaws the processes. A request that is sent before the vCPUs are resumed is the first thing that the guest handles. */
  thaw(): Promise<void>;
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
  /** For failpoints. */
  operation: 'fork' | 'snapshot';
}

export interface CheckpointOptions extends SourceOptions {
  /** Copies most of its memory while the guest runs. */
  precopy: (memory: GuestMemory) => Promise<Precopy>;
  /** When to pause the guest. */
  tuning: PrecopyTuning;
}

/** The state of a guest at one point in time, while the guest continues. */
export interface Checkpoint {
  /** Its layers are immutable from now on. */
  disk: DiskChain;
  stateBytes: number;
  /** Milliseconds from the start of the freeze to the end of each step. */
  steps: Record<string, number>;
}

/**
 * Captures memory, devices and disk of a running guest at one point in time. The guest is paused only while its devices are
 * saved, a layer is added to its disk and the rest of its memory is copied; all slower steps come before or after.
 * @param statePath file for the device state; must not exist
 * @throws when the capture fails; the guest continues in any case
 */
export async function takeCheckpoint(options: CheckpointOptions, statePath: string): Promise<Checkpoint> {
  const { running, record, jail, persistent, hold, precopy, tuning, operation } = options;
  const { vm } = running;
  const chain = await diskOf(options);
  await using prepared = new AsyncDisposableStack();
  const memory = await findGuestMemory(vm.identity.pid, record.shape.memMib * 1024 * 1024);
  const makeLayer = (): Promise<LiveLayer> => prepareLayer(vm, chain, { jail, uid: record.uid, persistent });
  const [copy, state, layer] = await allSettled([
    precopy(memory).then((ready) => prepared.use(ready)),
    vm.prepareState({ root: jail, uid: record.uid }).then((ready) => prepared.use(ready)),
    isTopEmpty(chain).then((empty) => (empty ? undefined : makeLayer())),
    // `stop` flushes the guest's disk. Most of it is flushed now, while the guest runs.
    flushTop(chain),
  ]);
  await copy.approach(tuning);
  // The last step before the freeze, so that its code is still in the caches.
  await hold.warmUp();
  failpoint(`${operation}:prepared`);

  const clock = new Stopwatch(true);
  let taken: [void, DiskChain, void];
  try {
    await hold.freeze(false);
    clock.mark('frozen');
    failpoint(`${operation}:frozen`);
    await vm.stop();
    clock.mark('stopped');
    failpoint(`${operation}:stopped`);
    taken = await allSettled([state.save(), layerOn(chain, layer, makeLayer), copy.take()]);
    clock.mark('taken');
    failpoint(`${operation}:taken`);
  } finally {
    // Concurrently: the request to thaw waits in the agent's port when the vCPUs are resumed.
    await Promise.all([vm.continue(), hold.thaw()]);
  }
  clock.mark('thawed');
  return { disk: taken[1], stateBytes: await state.copyTo(statePath), steps: clock.steps };
}

/**
 * Captures the disk only. The guest's processes are frozen while their last writes are flushed and a layer is added, which
 * takes the same time for a disk of any size.
 */
export async function takeDisk(
  options: SourceOptions,
): Promise<{ disk: DiskChain; steps: Record<string, number> }> {
  const { running, record, jail, persistent, hold, operation } = options;
  const chain = await diskOf(options);
  await hold.sync();
  const layer = await prepareLayer(running.vm, chain, { jail, uid: record.uid, persistent });
  await hold.warmUp();
  failpoint(`${operation}:prepared`);
  const clock = new Stopwatch(true);
  let disk: DiskChain;
  try {
    await hold.freeze(true);
    clock.mark('frozen');
    failpoint(`${operation}:frozen`);
    disk = await layer.putOnTop();
    clock.mark('taken');
    failpoint(`${operation}:taken`);
  } finally {
    await hold.thaw();
  }
  clock.mark('thawed');
  return { disk, steps: clock.steps };
}

/**
 * Makes all layers of a paused guest's disk immutable by adding one on top. A top layer that is still empty is reused, so
 * that the disk of a source that writes nothing between captures gets no more layers.
 * @returns the immutable layers
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
