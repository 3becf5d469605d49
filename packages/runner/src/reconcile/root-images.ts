import { stat, writeFile } from 'node:fs/promises';
import type { Origin, RootSource } from '@releap/contract';
import type { Assignment } from './assignment.ts';
import { linkOrCopy } from '../disk/disk-chain.ts';
import type { StoredImage } from '../image/image-folder.ts';
import type { ImageLease, ImageStore, RootImage } from '../image/image-store.ts';
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

  /** An image that must be on this host because a disk is based on it, in one file. */
  async find(manifest: string): Promise<HeldImage> {
    const lease = this.#images.lease(manifest);
    try {
      if ((await this.#images.find(manifest)) === undefined)
        throw new Error(`its root image ${manifest} is not on this machine any more`);
      return held(await this.#images.whole(manifest), lease);
    } catch (error) {
      lease.release();
      throw error;
    }
  }

  /**
   * An image, pulled if necessary.
   * @param manifest digest of the required image, for a disk that is based on it
   * @param origin a snapshot, which holds the image that its disk is based on
   * @param durable in one file that has been fsynced, for a disk that survives a power failure
   */
  async acquire(
    source: RootSource,
    signal: AbortSignal,
    manifest: string | undefined,
    origin: Origin | undefined,
    durable: boolean,
  ): Promise<HeldImage> {
    const images = this.#images;
    if (origin?.type === 'snapshot' && (manifest === undefined || !(await images.find(manifest)))) {
      const { folder, facts } = await this.#machines.snapshots.open(origin.snapshot_id);
      if (facts.manifest === manifest) {
        const path = heldImagePath(folder);
        return { digest: facts.manifest, path, config: facts.image, [Symbol.dispose]: () => undefined };
      }
    }
    const known = manifest === undefined ? undefined : await images.find(manifest);
    const { image, ...lease } = known
      ? { image: known, ...images.lease(known.digest) }
      : await images.acquire(source, { signal });
    try {
      if (manifest !== undefined && image.digest !== manifest) {
        throw new Error(
          `its disk is based on root image ${manifest}, which is no longer available: its source is now ${image.digest}`,
        );
      }
      return held(durable ? await images.whole(image.digest, signal) : image, lease);
    } catch (error) {
      lease.release();
      throw error;
    }
  }

  /** Digest of the image that a snapshot's disk is based on. @throws when the snapshot is not on this host */
  async manifestOf(snapshotId: string): Promise<string> {
    return (await this.#machines.snapshots.open(snapshotId)).facts.manifest;
  }

  /** Puts the root image of a snapshot into the cache, unless it is there: a sandbox that was moved may boot from it. */
  async placeOf(snapshotId: string): Promise<void> {
    const { folder, facts } = await this.#machines.snapshots.open(snapshotId);
    const { manifest: digest, image: config } = facts;
    if ((await this.#images.find(digest)) !== undefined) return;
    const held = heldImagePath(folder);
    const { size: sizeBytes } = await stat(held);
    // Those who ask for it by name ask its registry.
    const stored: StoredImage = {
      version: 1,
      digest,
      sizeBytes,
      layerCount: 0,
      config,
      origin: { repository: '', anonymous: false },
    };
    await this.#images.place(
      digest,
      {
        root: (path) => linkOrCopy(held, path),
        config: (path) => writeFile(path, JSON.stringify(stored)),
      },
      {},
    );
  }

  /** The root image of an existing disk: the one that is held, or the same pulled again. */
  async ofDisk(
    { vm_id: vmId, spec }: Assignment,
    past: SandboxHistory,
    signal: AbortSignal,
  ): Promise<{ path: string; image: HeldImage | undefined }> {
    const path = await this.#machines.persistent.heldImage(vmId);
    if (path !== undefined) return { path, image: undefined };
    const image = await this.acquire(spec.root, signal, past.manifest, undefined, true);
    return { path: image.path, image };
  }
}

function held({ digest, path, parts, config }: RootImage, lease: ImageLease): HeldImage {
  return { digest, path, ...(parts && { parts }), config, [Symbol.dispose]: () => lease.release() };
}
