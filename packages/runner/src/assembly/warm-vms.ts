/** The waiting VMs of a runner. */
import { totalmem } from 'node:os';
import type { RootSource } from '@releap/contract';
import { warmUp } from '../guest/warm-up.ts';
import type { ImageStore } from '../image/image-store.ts';
import { type Admission, type Machines, WarmPools, WarmVms } from '../machine/index.ts';
import type { Network } from '../network/network.ts';
import type { Slot } from '../network/slot.ts';
import { warmUpConfig } from '../reconcile/guest-config.ts';
import { DEFAULT_MACHINE_SIZE, type RunnerOptions } from '../runner-options.ts';

/** Unless it was configured, waiting machines may take an eighth of the host's memory. */
const MEMORY_SHARE = 8;
const DISK_MAX_MIB = 4096;
/** The image that waiting VMs warm up with: small, and built from packages of the set-up. */
const WARM_UP_IMAGE: RootSource = { type: 'builtin', name: 'busybox' };
const WARM_UP_SCRATCH_MIB = 512;

export interface WarmParts {
  options: RunnerOptions;
  machines: Machines;
  network: Network;
  admission: Admission;
  images: ImageStore;
}

/** Prepares none before `pools.start()`. */
export function createWarmVms({ options, machines, network, admission, images }: WarmParts): {
  pools: WarmPools;
  warm: WarmVms<Slot>;
} {
  const { warmPool, log } = options;
  const pools = new WarmPools({
    budgetMib: warmPool.memoryMib ?? Math.floor(totalmem() / 2 ** 20 / MEMORY_SHARE),
    idleCapacity: (signal) => admission.idleCapacity(signal),
    log: log.child({ part: 'pool' }),
  });
  machines.memoryBudget.alsoRelease(() => pools.release());
  const warm = new WarmVms<Slot>({
    machines,
    pools,
    slots: network,
    shape: DEFAULT_MACHINE_SIZE,
    size: warmPool.size,
    diskMaxMib: DISK_MAX_MIB,
    warmUp: {
      image: () => images.ensure(WARM_UP_IMAGE),
      scratchMib: WARM_UP_SCRATCH_MIB,
      run: (running) => warmUp(running.agentSocketPath, warmUpConfig(running), log),
    },
  });
  return { pools, warm };
}
