import { join } from 'node:path';
import { mkdir, readdir } from 'node:fs/promises';
import type { VolumeOpener } from '../../src/reconcile/sandbox-volumes.ts';
import { XfsDisks, type DiskPaths } from '../../src/volume/xfs-disks.ts';

const SIZE_GB = 1;

/** Volumes that are on this host alone: nothing is fetched and nothing committed. */
export class LocalVolumes implements VolumeOpener {
  readonly #folder: string;
  readonly #disks = new XfsDisks();
  /** Sandboxes that have a volume open. */
  readonly users = new Map<string, Set<string>>();

  constructor(folder: string) {
    this.#folder = folder;
  }

  paths(volumeId: string): DiskPaths {
    const folder = join(this.#folder, volumeId);
    const mount = join(folder, 'mnt');
    return {
      image: join(folder, 'disk.img'),
      mount,
      data: join(mount, 'data'),
      displaced: join(mount, '.releap/limbo'),
    };
  }

  async open(volumeId: string, sandboxId: string): Promise<{ data: string }> {
    const users = this.users.get(volumeId) ?? new Set();
    this.users.set(volumeId, users.add(sandboxId));
    const paths = this.paths(volumeId);
    await mkdir(join(this.#folder, volumeId), { recursive: true });
    await this.#disks.mount(paths, SIZE_GB);
    return { data: paths.data };
  }

  /** What an earlier runner has opened this one does not know. */
  async close(volumeId: string, sandboxId: string): Promise<void> {
    const users = this.users.get(volumeId);
    users?.delete(sandboxId);
    if ((users?.size ?? 0) === 0) await this.#disks.unmount(this.paths(volumeId)).catch(() => undefined);
  }

  async dispose(): Promise<void> {
    for (const volumeId of await readdir(this.#folder).catch(() => []))
      await this.#disks.unmount(this.paths(volumeId));
  }
}
