import type { Origin, RootSource } from '@releap/contract';
import type { Assignment } from './assignment.ts';
import type { ImageStore } from '../image/image-store.ts';
import { heldImagePath } from '../machine/index.ts';
import type { Machines } from '../machine/index.ts';
import type { HeldImage, SandboxHistory } from './sandbox-host.ts';

/** The root images that sandboxes begin with, and those that their disks lie on. */
export class RootImages {
  readonly #images: ImageStore;
  readonly #machines: Machines;

  constructor(images: ImageStore, machines: Machines) {
    this.#images = images;
    this.#machines = machines;
  }

  /** Whether one that will do lies here already. @param manifest the one that will */
  async has(source: RootSource, manifest?: string): Promise<boolean> {
    const images = this.#images;
    if (manifest !== undefined && (await images.find(manifest)) !== undefined) return true;
    return await images.has(source);
  }

  /** An image that must be here, for something lies on it. */
  async find(manifest: string): Promise<HeldImage> {
    const images = this.#images;
    const found = await images.find(manifest);
    if (found === undefined) throw new Error(`its root image ${manifest} is not on this machine any more`);
    const lease = images.lease(found.digest);
    const { digest, path, config } = found;
    return { digest, path, config, [Symbol.dispose]: () => lease.release() };
  }

  /**
   * An image, fetched if need be.
   * @param manifest the one image that will do, for a disk that lies on it
   * @param origin a snapshot holds the image that its disk lies on
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
        `its disk lies on root image ${manifest}, which is not here any more and cannot be had: what it was made from is now ${digest}`,
      );
    }
    return { digest, path, config, [Symbol.dispose]: () => held.release() };
  }

  /** Digest of the image that a snapshot's disk lies on. @throws when the snapshot is not here */
  async manifestOf(snapshotId: string): Promise<string> {
    return (await this.#machines.snapshots.open(snapshotId)).facts.manifest;
  }

  /** The root image of a disk that has run: the one that is held, or the same fetched again. */
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
