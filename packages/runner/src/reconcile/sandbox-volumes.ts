import type { VolumeMount } from '@releap/contract/runner';
import type { Logger } from 'pino';
import type { Share } from '../volume/share-server.ts';
import { volumeTag } from './guest-config.ts';

/** The copies of volumes on this host. Both calls may be repeated. */
export interface VolumeOpener {
  /** Mounts the newest content for a sandbox. @returns folder of the tree on this host */
  open(volumeId: string, sandboxId: string, signal: AbortSignal): Promise<{ data: string }>;
  /** Nothing of the sandbox uses it any more. */
  close(volumeId: string, sandboxId: string): Promise<void>;
}

/** Opens the volumes of sandboxes before their VMs start, and closes them after their VMs have ended. */
export class SandboxVolumes {
  readonly #copies: VolumeOpener;
  readonly #log: Logger;
  /** Volumes by sandbox. What an earlier process has opened and no VM uses, the copies close when they recover. */
  readonly #used = new Map<string, { ids: Set<string>; shares: Share[] }>();

  constructor(copies: VolumeOpener, log: Logger) {
    this.#copies = copies;
    this.#log = log;
  }

  /** @throws with the reason when the content of one cannot be had; `close` then closes the others */
  async open(vmId: string, volumes: readonly VolumeMount[], signal: AbortSignal): Promise<void> {
    if (volumes.length === 0) return;
    const used = this.use(vmId, volumes);
    const opened = new Map(
      await Promise.all(
        [...used.ids].map(async (id) => [id, (await this.#copies.open(id, vmId, signal)).data] as const),
      ),
    );
    used.shares = volumes.map(({ id, subpath }, index) => ({
      tag: volumeTag(index),
      data: opened.get(id) ?? '',
      subpath,
    }));
  }

  /** What the guest of a sandbox can mount, in the order of its volumes. */
  shares(vmId: string): readonly Share[] {
    return this.#used.get(vmId)?.shares ?? [];
  }

  /** A sandbox uses these volumes. */
  use(vmId: string, volumes: readonly VolumeMount[]): { ids: Set<string>; shares: Share[] } {
    const used = { ids: new Set(volumes.map(({ id }) => id)), shares: [] };
    this.#used.set(vmId, used);
    return used;
  }

  /** To be called when no process of the VM is left. */
  async close(vmId: string): Promise<void> {
    // At once: each may wait for its last commit, and the end of a sandbox has a deadline.
    await Promise.all(
      [...(this.#used.get(vmId)?.ids ?? [])].map((id) =>
        this.#copies
          .close(id, vmId)
          .catch((error: unknown) =>
            this.#log.error({ err: error, vm: vmId, volume: id }, 'a volume stays open'),
          ),
      ),
    );
    this.#used.delete(vmId);
  }
}
