import { rm } from 'node:fs/promises';
import type { Logger } from 'pino';
import { openedChain } from '../disk/block-graph.ts';
import { chainPath, LAYERS_KEPT, readChain } from '../disk/disk-chain.ts';
import type { DiskChain } from '../disk/disk-chain.ts';
import { dropUnused, flattenChain, unusedFiles, writeFlat } from '../disk/flatten.ts';
import { putBelow } from '../disk/live-flatten.ts';
import { explainFullDisk } from '../memory/memory-file.ts';
import { failpoint } from '../failpoint.ts';
import type { CaptureSource } from './captures.ts';
import type { SnapshotFolders } from './snapshot-folder.ts';
import type { VmFolders } from './vm-folder.ts';

/** By then every reader of a disk's list has taken its layers. */
const OPENING_GRACE_MS = 30_000;

type RunningDisk = Pick<CaptureSource, 'vmId' | 'running' | 'persistent'>;

/** Makes few layers of many, in the background: every capture leaves one more. */
export class Flattening {
  readonly #folders: VmFolders;
  readonly #snapshots: SnapshotFolders;
  readonly #log: Logger;

  constructor(options: { folders: VmFolders; snapshots: SnapshotFolders; log: Logger }) {
    this.#folders = options.folders;
    this.#snapshots = options.snapshots;
    this.#log = options.log;
  }

  /**
   * Makes the disk of a snapshot few layers, if it is many, so that what begins with it is as quick as what begins with
   * the first of its line.
   */
  async snapshot(id: string): Promise<void> {
    const chain = await readChain(this.#snapshots.path(id));
    if (chain === undefined) return;
    const many = chain.layers.length > LAYERS_KEPT;
    const flat = many ? await flattenChain(chain) : chain;
    if (many) this.#log.info({ snapshot: id, layers: chain.layers.length }, 'snapshot flattened');
    // Also what a runner has left that ended right here.
    if ((await unusedFiles(flat)).length === 0) return;
    const drop = (): void =>
      void dropUnused(flat).catch((error: unknown) =>
        this.#log.warn({ err: error, snapshot: id }, 'unused layers may remain'),
      );
    setTimeout(drop, OPENING_GRACE_MS).unref();
  }

  /**
   * Writes what lies below the top of a running VM's disk as fewer layers, if those are many. The VM continues, and may be
   * captured. @returns what to give to `putBelow`; undefined when there is nothing to do
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
      const flat = await writeFlat({ ...chain, layers: chain.layers.slice(0, -1) }, signal);
      failpoint('flatten:written');
      return flat;
    } catch (error) {
      throw explainFullDisk(error, folder, 'the disk');
    }
  }

  /** Gives the VM what `write` has made. Nothing else may be done with the VM meanwhile. */
  async putBelow({ vmId, running, persistent }: RunningDisk, flat: DiskChain): Promise<void> {
    const chain = await readChain(flat.folder);
    try {
      if (chain === undefined) throw new Error(`VM ${vmId} has no disk`);
      const opened = await openedChain(running.vm, chain);
      const now = await putBelow(running.vm, opened, flat, { jail: this.#folders.jail(vmId), persistent });
      this.#log.info({ vm: vmId, from: chain.layers.length, to: now.layers.length }, 'disk flattened');
    } catch (error) {
      await this.abandon(flat);
      throw error;
    }
  }

  /** Instead of `putBelow`: removes what `write` has made, unless the disk has it. */
  async abandon(flat: DiskChain): Promise<void> {
    const chain = await readChain(flat.folder);
    const name = flat.layers.at(-1);
    if (name !== undefined && chain?.layers.includes(name) !== true)
      await rm(chainPath(flat, name), { force: true });
  }

  #folderOf(vmId: string, persistent: boolean): string {
    return persistent ? this.#folders.keep(vmId) : this.#folders.disk(vmId);
  }
}
