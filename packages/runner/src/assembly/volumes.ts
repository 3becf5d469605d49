/** The copies of volumes on a host. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { virtiofsdFolder } from '@releap/contract/volume-probe';
import type { StoreClient } from '../artifact/store-client.ts';
import { CgroupTree } from '../cgroup/cgroup-tree.ts';
import { pinnedProgram } from '../host/pinned-program.ts';
import type { Quarantine } from '../quarantine/quarantine.ts';
import type { RunnerOptions } from '../runner-options.ts';
import { VolumeClient } from '../volume/volume-client.ts';
import { VolumeCopies } from '../volume/volume-copies.ts';
import { Voltree, VOLTREE, voltreeLimits } from '../volume/voltree.ts';
import { XfsDisks } from '../volume/xfs-disks.ts';

export interface VolumeParts {
  options: RunnerOptions;
  /** Of the runner's state. */
  folder: string;
  runnerId: string;
  /** Folder of the programs that this service uses (`pinnedProgram`). */
  programs: string;
  store: StoreClient;
  quarantine: Quarantine;
}

/** @returns the copies, and the control groups of the processes that work on them */
export async function openVolumes(parts: VolumeParts): Promise<{ copies: VolumeCopies; groups: CgroupTree }> {
  const { options, folder, runnerId, programs, store, quarantine } = parts;
  await using opened = new AsyncDisposableStack();
  // Apart from those of the VMs, all of which a reconciliation ends that no record names.
  const groups = await CgroupTree.open(join(options.home, 'volumes'), voltreeLimits());
  opened.defer(() => groups.abandon());
  for (const left of await groups.list()) await groups.destroy(left);
  const pinned = async (): Promise<string> => await pinnedProgram(VOLTREE, programs);
  // At the first start of the service, set-up makes it later, with all that volumes need.
  if (existsSync(virtiofsdFolder(options.buildDir))) await pinned();
  const copies = new VolumeCopies({
    folder: join(folder, 'volumes'),
    quarantine,
    client: new VolumeClient(store),
    voltree: new Voltree(pinned, groups),
    disks: new XfsDisks(),
    hostName: runnerId.slice(0, 8),
    commitEveryMs: options.volumeCommitMs,
    log: options.log.child({ part: 'volume' }),
  });
  opened.move();
  return { copies, groups };
}
