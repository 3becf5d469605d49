import type { Logger } from 'pino';
import type { ArtifactFetcher } from '../artifact/artifact-fetcher.ts';
import type { StoreProgram } from '../host/store-program.ts';
import type { ImageStore } from '../image/image-store.ts';
import type { Admission, Machines, WarmVms } from '../machine/index.ts';
import type { UsageMeter } from '../metering/usage-meter.ts';
import type { Network } from '../network/network.ts';
import type { Slot } from '../network/slot.ts';
import type { VolumeOpener } from './sandbox-volumes.ts';

export interface MachineHostOptions {
  machines: Machines;
  artifacts: Pick<ArtifactFetcher, 'hasSnapshot' | 'ensureSnapshot'>;
  images: ImageStore;
  network: Network;
  /** Pools of VMs and VMMs. */
  warm: WarmVms<Slot>;
  /** Records what sandboxes use. */
  meter: Pick<UsageMeter, 'begin' | 'sample' | 'end'>;
  volumes: VolumeOpener;
  /** Mounts object stores in guests. */
  storeProgram: Pick<StoreProgram, 'find'>;
  /** Limits concurrent starts. */
  admission: Admission;
  /** Folder of the logs, with a folder for each sandbox. */
  logsFolder: string;
  /** Address that declared ports are published on. */
  listenHost: string;
  log: Logger;
}
