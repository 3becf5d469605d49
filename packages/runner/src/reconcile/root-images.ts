import type { Origin, RootSource } from '@releap/contract';
import type { Assignment } from './assignment.ts';
import type { ImageStore } from '../image/image-store.ts';
import { heldImagePath } from '../machine/index.ts';
import type { Machines } from '../machine/index.ts';
import type { HeldImage, SandboxHistory } from './sandbox-host.ts';

/** Root images of sandboxes: those of new ones, and those that existing disks are based on. */
export class RootImages {
  readonly #images: ImageStore;
  readonly #machines: Machines;

  constructor(images: ImageStore, machines: Machines) {
    this.#images = images;
    this.#machines = machines;
  }

  /** Whether a suitable image is on this host. @param manifest digest of the required image */
  async has(source: RootSource, manifest?: string): Promise<boolean> {
    const images = this.#images;
    if (manifest !== undefined && (await images.find(manifest)) !== undefined) return true;
    return await images.has(source);
  }

  /** An image that must be on this host because a disk is based on it. */
  async find(manifest: string): Promise<HeldImage> {
    const images = this.#images;
    const found = await images.find(manifest);
    if (found === undefined) throw new Error(`its root image ${manifest} is not on this machine any more`);
    const lease = images.lease(found.digest);
    const { digest, path, config } = found;
    return { digest, path, config, [Symbol.dispose]: () => lease.release() };
  }

  /**
   * An image, pulled if necessary.
   * @param manifest digest of the required image, for a disk that is based on it
   * @param origin a snapshot, which holds the image that its disk is based on
   */
  async acquire(
    source: RootSource,
    signal: AbortSignal,
    manifest?: string,
    origin?: Origin,
  ): Promise<HeldImage> {
    const images = this.#images;
    if (manifest !== undefined && (await images.find(manifest)) !== undefined) {
      return await this.find(manifest);
    }
    if (origin?.type === 'snapshot') {
      const { folder, facts } = await this.#machines.snapshots.open(origin.snapshot_id);
      if (facts.manifest === manifest) {
        const path = heldImagePath(folder);
        return { digest: facts.manifest, path, config: facts.image, [Symbol.dispose]: () => undefined };
      }
    }
    const held = await images.acquire(source, { signal });
    const { digest, path, config } = held.image;
    if (manifest !== undefined && digest !== manifest) {
      held.release();
      throw new Error(
        `its disk is based on root image ${manifest}, which is no longer available: its source is now ${digest}`,
      );
    }
    return { digest, path, config, [Symbol.dispose]: () => held.release() };
  }

  /** Digest of the image that a snapshot's disk is based on. @throws when the snapshot is not on this host */
  async manifestOf(snapshotId: string): Promise<string> {
    return (await this.#machines.snapshots.open(snapshotId)).facts.manifest;
  }

  /** The root image of an existing disk: the one that is held, or the same pulled again. */
  async ofDisk(
    { vm_id: vmId, spec }: Assignment,
    past: SandboxHistory,
    signal: AbortSignal,
  ): Promise<{ path: string; image: HeldImage | undefined }> {
    const path = await this.#machines.persistent.heldImage(vmId);
    if (path !== undefined) return { path, image: undefined };
    const image = await this.acquire(spec.root, signal, past.manifest);
    return { path: image.path, image };
  }
}
