import { rm } from 'node:fs/promises';
import type { Logger } from 'pino';
import { chainPath, LAYERS_KEPT, readChain } from '../disk/disk-chain.ts';
import type { DiskChain } from '../disk/disk-chain.ts';
import { dropUnused, compactChain, unusedFiles, writeCompacted } from '../disk/layer-compaction.ts';
import { explainFullDisk } from '../memory/memory-file.ts';
import { failpoint } from '../failpoint.ts';
import type { CaptureSource } from './captures.ts';
import { openedChain } from './live-disk.ts';
import { replaceBackingChain } from './replace-backing-chain.ts';
import type { SnapshotFolders } from './snapshot-folder.ts';
import type { VmFolders } from './vm-folder.ts';

/** After this time, no reader of the former manifest still opens its layers. */
const OPENING_GRACE_MS = 30_000;

type RunningDisk = Pick<CaptureSource, 'vmId' | 'running' | 'persistent'>;

/** Compacts the layers of disks in the background, as every capture adds one. */
export class LayerCompaction {
  readonly #folders: VmFolders;
  readonly #snapshots: SnapshotFolders;
  readonly #log: Logger;

  constructor(options: { folders: VmFolders; snapshots: SnapshotFolders; log: Logger }) {
    this.#folders = options.folders;
    this.#snapshots = options.snapshots;
    this.#log = options.log;
  }

  /**
   * Compacts the disk of a snapshot if it has many layers, so that creates from it take as long as from the first snapshot of
   * a sandbox.
   */
  async snapshot(id: string): Promise<void> {
    const chain = await readChain(this.#snapshots.path(id));
    if (chain === undefined) return;
    const many = chain.layers.length > LAYERS_KEPT;
    const compacted = many ? await compactChain(chain) : chain;
    if (many) this.#log.info({ snapshot: id, layers: chain.layers.length }, 'layers of a snapshot compacted');
    // Also the files of an earlier runner that ended at this point.
    if ((await unusedFiles(compacted)).length === 0) return;
    const drop = (): void =>
      void dropUnused(compacted).catch((error: unknown) =>
        this.#log.warn({ err: error, snapshot: id }, 'unused layers may remain'),
      );
    setTimeout(drop, OPENING_GRACE_MS).unref();
  }

  /**
   * Writes the layers below the top of a running VM's disk as fewer new ones, if there are many. The VM continues, and may be
   * captured. @returns the argument of `replaceBackingChain`; undefined when there is nothing to do
   */
  async write(
    { vmId, running, persistent }: RunningDisk,
    signal: AbortSignal,
  ): Promise<DiskChain | undefined> {
    const folder = this.#folderOf(vmId, persistent);
    const listed = await readChain(folder);
    if (listed === undefined || listed.layers.length <= LAYERS_KEPT) return undefined;
    const chain = await openedChain(running.vm, listed);
    try {
      const compacted = await writeCompacted({ ...chain, layers: chain.layers.slice(0, -1) }, signal);
      failpoint('compaction:written');
      return compacted;
    } catch (error) {
      throw explainFullDisk(error, folder, 'the disk');
    }
  }

  /** Switches the VM to the layers that `write` has made. No other operation on the VM may run meanwhile. */
  async replaceBackingChain({ vmId, running, persistent }: RunningDisk, compacted: DiskChain): Promise<void> {
    const chain = await readChain(compacted.folder);
    try {
      if (chain === undefined) throw new Error(`VM ${vmId} has no disk`);
      const opened = await openedChain(running.vm, chain);
      const now = await replaceBackingChain(running.vm, opened, compacted, {
        jail: this.#folders.jail(vmId),
        persistent,
      });
      this.#log.info(
        { vm: vmId, from: chain.layers.length, to: now.layers.length },
        'layers of a disk compacted',
      );
    } catch (error) {
      await this.abandon(compacted);
      throw error;
    }
  }

  /** Instead of `replaceBackingChain`: removes the layer that `write` has made, unless the disk uses it. */
  async abandon(compacted: DiskChain): Promise<void> {
    const chain = await readChain(compacted.folder);
    const name = compacted.layers.at(-1);
    if (name !== undefined && chain?.layers.includes(name) !== true)
      await rm(chainPath(compacted, name), { force: true });
  }

  #folderOf(vmId: string, persistent: boolean): string {
    return persistent ? this.#folders.keep(vmId) : this.#folders.disk(vmId);
  }
}
