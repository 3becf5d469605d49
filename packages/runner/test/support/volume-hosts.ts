/** Hosts with copies of volumes, of a real control plane: no micro-VM is started, and the test writes what sandboxes would. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { newUuid } from '@releap/contract';
import { credentialOf } from '@releap/testing/credentials';
import { quiet, type ScriptedRunner, type World } from '@releap/testing/world';
import { StoreClient } from '../../src/artifact/store-client.ts';
import { CgroupTree } from '../../src/cgroup/cgroup-tree.ts';
import { run } from '../../src/process/index.ts';
import { Quarantine } from '../../src/quarantine/quarantine.ts';
import { VolumeClient } from '../../src/volume/volume-client.ts';
import { VolumeCopies } from '../../src/volume/volume-copies.ts';
import { VolumeReconciler } from '../../src/volume/volume-reconciler.ts';
import { Voltree, VOLTREE } from '../../src/volume/voltree.ts';
import { XfsDisks } from '../../src/volume/xfs-disks.ts';

export interface VolumeHostOptions {
  id: string;
  folder: string;
  controlUrl: string;
  commitEveryMs?: number;
  timing?: { closeWaitMs?: number; outageMs?: number };
  /** Of transfers. */
  stallMs?: number;
  space?: () => Promise<{ freeBytes: number; totalBytes: number }>;
}

/** The copies of one host, as its runner has them. */
export async function openCopies(options: VolumeHostOptions): Promise<VolumeCopies> {
  const { id, folder, controlUrl } = options;
  const volumes = join(folder, 'volumes');
  const quarantine = new Quarantine({ folder: join(folder, 'quarantine'), source: volumes, log: quiet });
  await quarantine.open();
  const store = new StoreClient({
    controlUrl,
    credential: () => Promise.resolve(credentialOf(id)),
    pauseMs: 20,
    ...(options.stallMs && { stallMs: options.stallMs }),
  });
  return new VolumeCopies({
    folder: volumes,
    quarantine,
    client: new VolumeClient(store),
    voltree: new Voltree(async () => VOLTREE, await CgroupTree.open(folder)),
    disks: new XfsDisks(),
    hostName: id.slice(0, 8),
    commitEveryMs: options.commitEveryMs ?? 3_600_000,
    ...(options.timing && { timing: options.timing }),
    ...(options.space && { space: options.space }),
    log: quiet,
  });
}

export interface VolumeHost {
  id: string;
  runner: ScriptedRunner;
  copies: VolumeCopies;
  reconciler: VolumeReconciler;
  /** Another process on the same machine: the first one is gone, without having ended anything. */
  restart(): Promise<void>;
}

export async function volumeHost(
  world: World,
  folder: string,
  options: Partial<
    Pick<VolumeHostOptions, 'controlUrl' | 'commitEveryMs' | 'timing' | 'space' | 'stallMs'>
  > = {},
): Promise<VolumeHost> {
  const id = newUuid();
  const open = async (): Promise<VolumeCopies> =>
    await openCopies({ id, folder: join(folder, id), controlUrl: world.internalUrl, ...options });
  const copies = await open();
  let host: VolumeHost | undefined;
  const runner = await world.runner({ id, volume: (assignment) => host?.reconciler.assign(assignment) });
  const reconcile = (of: VolumeCopies): VolumeReconciler =>
    new VolumeReconciler({ copies: of, report: (report) => runner.report(report), log: quiet });
  host = {
    id,
    runner,
    copies,
    reconciler: reconcile(copies),
    async restart() {
      await this.copies.detach();
      this.copies = await open();
      this.reconciler = reconcile(this.copies);
      await this.copies.recover();
      this.copies.start(() => true);
      for (const assignment of runner.volumes.values()) this.reconciler.assign(assignment);
    },
  };
  await copies.recover();
  copies.start(() => true);
  return host;
}

/** Unmounts everything below the folder of a test, including mounts of other processes, and removes the control groups of its hosts. */
export async function cleanUpBelow(folder: string): Promise<void> {
  const mounts = (await readFile('/proc/self/mountinfo', 'utf8'))
    .split('\n')
    .map((line) => line.split(' ')[4] ?? '');
  for (const mount of mounts.filter((path) => path.startsWith(`${folder}/`))) await run('umount', [mount]);
  for (const host of await readdir(folder)) {
    const groups = await CgroupTree.open(join(folder, host));
    for (const left of await groups.list()) await groups.destroy(left);
    await groups.close();
  }
}
