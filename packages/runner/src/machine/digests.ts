import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { chainPath, identityOf, readChain } from '../disk/disk-chain.ts';
import { fileSha256InBackground } from '../disk/file-sha256.ts';
import { knownDigest, rememberDigest } from '../disk/known-digests.ts';
import { recordDigests } from '../disk/manifest.ts';
import type { SnapshotFolders } from './snapshot-folder.ts';
import type { VmFolders } from './vm-folder.ts';

/** Interval of sweeps for files without a digest, in addition to one for each new file. */
const SWEEP_EVERY_MS = 10 * 60_000;

/**
 * Computes the digests of immutable files in the background: layers and memory of snapshots, and the layers below the top of
 * stopped and paused sandboxes. (After a failed capture, a running VMM may still write to a layer below the top; its layers
 * are read when the sandbox is stopped.) A layer that several folders share is read once.
 */
export class Digests {
  readonly #folders: VmFolders;
  readonly #snapshots: SnapshotFolders;
  readonly #log: Logger;
  readonly #stop = new AbortController();
  #timer: NodeJS.Timeout | undefined;
  #sweeping: Promise<void> | undefined;
  #again = false;

  constructor(options: { folders: VmFolders; snapshots: SnapshotFolders; log: Logger }) {
    this.#folders = options.folders;
    this.#snapshots = options.snapshots;
    this.#log = options.log;
  }

  start(): void {
    this.#timer = setInterval(() => this.look(), SWEEP_EVERY_MS).unref();
    this.look();
  }

  /** Starts a sweep, because there may be new files. */
  look(): void {
    if (this.#timer === undefined) return;
    void this.sweep().catch((error: unknown) => this.#log.warn({ err: error }, 'digests are missing'));
  }

  /** Resolves when all immutable files that can be read have a digest. */
  async sweep(): Promise<void> {
    this.#again = true;
    this.#sweeping ??= (async () => {
      while (this.#again && !this.#stop.signal.aborted) {
        this.#again = false;
        await this.#sweepOnce();
      }
    })().finally(() => {
      this.#sweeping = undefined;
    });
    await this.#sweeping;
  }

  async close(): Promise<void> {
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.#stop.abort();
    await this.#sweeping?.catch(() => undefined);
  }

  async #sweepOnce(): Promise<void> {
    for (const id of await this.#snapshots.finished()) {
      await this.#attempt({ snapshot: id }, async () => {
        await this.#layers(this.#snapshots.path(id), (layers) => layers);
        const { memory } = (await this.#snapshots.load(id)) ?? {};
        if (memory === undefined) return;
        const folder = this.#snapshots.path(id);
        const found = [
          await this.#digest(memory.objects.memory.id, join(folder, 'memory')),
          await this.#digest(memory.objects.state.id, join(folder, 'state')),
        ];
        if (memory.objects.memory.sha256 === null && found.every(Boolean))
          await this.#snapshots.recordDigests(id);
      });
    }
    for (const vmId of await this.#folders.list()) {
      if ((await this.#folders.load(vmId)) !== undefined) continue;
      await this.#attempt({ vm: vmId }, () =>
        this.#layers(this.#folders.keep(vmId), (layers) => layers.slice(0, -1)),
      );
    }
  }

  async #layers(folder: string, immutable: (layers: readonly string[]) => readonly string[]): Promise<void> {
    const chain = await readChain(folder);
    if (chain === undefined) return;
    let isNew = false;
    for (const layer of immutable(chain.layers)) {
      const { id, digest } = identityOf(chain, layer);
      if (digest !== undefined) rememberDigest(id, digest);
      else if (await this.#digest(id, chainPath(chain, layer))) isNew = true;
    }
    if (isNew) await recordDigests(folder);
  }

  /** @returns whether the digest is known now */
  async #digest(id: string, path: string): Promise<boolean> {
    if (knownDigest(id) !== undefined) return true;
    if (this.#stop.signal.aborted) return false;
    const { size } = await stat(path);
    rememberDigest(id, { bytes: size, sha256: await fileSha256InBackground(path, this.#stop.signal) });
    return true;
  }

  async #attempt(what: object, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      // The file was removed or compacted while it was read.
      if (!this.#stop.signal.aborted) this.#log.debug({ ...what, err: error }, 'digests are missing');
    }
  }
}
