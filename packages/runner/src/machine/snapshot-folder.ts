import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { exclusive } from '../disk/exclusive.ts';
import { knownDigest } from '../disk/known-digests.ts';
import { idOfFile } from '../disk/manifest.ts';
import { syncLarge, syncPath } from '../disk/sync-path.ts';
import type { ImageConfig } from '../image/image-config.ts';
import type { GuestSize } from '../template/machine-size.ts';
import type { Accelerator } from '../vmm/hardware.ts';
import type { VmmDriver } from '../vmm/driver.ts';
import { SuspendImage } from './suspend-image.ts';

const SNAPSHOT_ID = /^[0-9a-f-]{36}$/;
/** What is known of the snapshot in a folder. */
export const FACTS_FILE = 'snapshot.json';

/** The root image below a disk. */
export interface CapturedImage {
  digest: string;
  path: string;
  config: ImageConfig;
}

/** What is recorded of a snapshot on this host. */
export interface SnapshotFacts {
  kind: 'disk' | 'full';
  vmId: string;
  /** Digest of the root image below its disk. */
  manifest: string;
  /** Configuration of that image. */
  image: ImageConfig;
  noChanges: boolean;
  /** Bytes of its top layer. */
  diskBytes: number;
  /** Size of the disk in the guest. */
  scratchBytes: number;
  /** Present in a full snapshot. */
  memory?: {
    shape: GuestSize;
    vmm: string;
    hostCpu: string;
    accelerator: Accelerator;
    /** What the host that restores it must provide. */
    requires: Requirements;
    objects: { memory: StoredObject; state: StoredObject };
  };
}

export interface Requirements {
  deviceModel: number;
  machineType: string;
  cpuModel: string;
  vmm: string;
}

/** An immutable file of a snapshot, as the layers of its disk are (`disk/manifest.ts`). */
export interface StoredObject {
  id: string;
  /** Null until the digest is known. */
  bytes: number | null;
  sha256: string | null;
}

const FACTS_VERSION = 2;

/**
 * The snapshots of one service, in a folder each: the manifest and layers of the disk, a link to the root image, and in a full
 * snapshot the suspend image. A folder gets its final name once all of its content is durable.
 */
export class SnapshotFolders {
  readonly #root: string;

  constructor(root: string) {
    this.#root = root;
  }

  path(id: string): string {
    if (!SNAPSHOT_ID.test(id)) throw new Error(`not an id of a snapshot: ${JSON.stringify(id)}`);
    return join(this.#root, id);
  }

  /** Undefined when it is not on this host. */
  async load(id: string): Promise<SnapshotFacts | undefined> {
    try {
      return parseFacts(id, await readFile(join(this.path(id), FACTS_FILE), 'utf8'));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw error;
    }
  }

  /** @throws when it is not on this host */
  async open(id: string): Promise<{ folder: string; facts: SnapshotFacts }> {
    const facts = await this.load(id);
    if (facts === undefined) throw new Error(`snapshot ${id} is not on this machine any more`);
    return { folder: this.path(id), facts };
  }

  /** Creates an empty folder for a new snapshot; what an earlier attempt has left is removed. */
  async begin(id: string): Promise<string> {
    const folder = `${this.path(id)}.partial`;
    await rm(folder, { recursive: true, force: true });
    await mkdir(folder, { recursive: true, mode: 0o700 });
    return folder;
  }

  /** Publishes a snapshot once it is durable. */
  async complete(id: string, facts: SnapshotFacts): Promise<void> {
    const folder = `${this.path(id)}.partial`;
    await writeFacts(folder, facts);
    for (const name of await readdir(folder)) await syncLarge(join(folder, name));
    await syncPath(folder);
    await rename(folder, this.path(id));
    await syncPath(this.#root);
  }

  /** Adds digests that are known by now. */
  async recordDigests(id: string): Promise<void> {
    const facts = await this.load(id);
    if (facts?.memory === undefined) return;
    const { objects } = facts.memory;
    const known = (object: StoredObject): StoredObject => ({ ...object, ...knownDigest(object.id) });
    const memory = {
      ...facts.memory,
      objects: { memory: known(objects.memory), state: known(objects.state) },
    };
    await exclusive(this.path(id), () => writeFacts(this.path(id), { ...facts, memory }));
  }

  /** Removes what a failed attempt has left. */
  async abandon(id: string): Promise<void> {
    await rm(`${this.path(id)}.partial`, { recursive: true, force: true });
  }

  /** Sandboxes that use its files have links of their own. */
  async remove(id: string): Promise<void> {
    // Renamed first: a partly removed snapshot must not be found.
    const away = `${this.path(id)}.partial`;
    await rm(away, { recursive: true, force: true });
    await rename(this.path(id), away).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOENT') throw error;
    });
    await rm(away, { recursive: true, force: true });
  }

  /** Ids of all complete snapshots. */
  async finished(): Promise<string[]> {
    const names = await readdir(this.#root).catch(() => [] as string[]);
    return names.filter((id) => SNAPSHOT_ID.test(id));
  }

  /** Ids of all snapshots, also of incomplete ones. */
  async list(): Promise<string[]> {
    const names = await readdir(this.#root).catch(() => [] as string[]);
    return [...new Set(names.map((name) => name.replace(/\.partial$/, '')))].filter((id) =>
      SNAPSHOT_ID.test(id),
    );
  }
}

/** The content of `snapshot.json`. @throws when a later version has written it */
export function parseFacts(id: string, text: string): SnapshotFacts {
  const { version, ...facts } = JSON.parse(text) as SnapshotFacts & { version: number };
  if (version > FACTS_VERSION)
    throw new Error(`snapshot ${id} was written by a later version of Releap (${version})`);
  return facts;
}

/** Describes the suspend image in a folder for `SnapshotFacts`. @throws when there is none */
export async function describeMemory(
  folder: string,
  driver: Pick<VmmDriver, 'machineType'>,
): Promise<Pick<NonNullable<SnapshotFacts['memory']>, 'requires' | 'objects'>> {
  const image = new SuspendImage(folder);
  const suspension = await image.read();
  if (suspension === undefined) throw new Error(`there is no memory in ${folder}`);
  const { deviceModel, cpuModel, vmm } = suspension;
  const object = async (path: string): Promise<StoredObject> => ({
    id: await idOfFile(path),
    bytes: null,
    sha256: null,
  });
  return {
    requires: { deviceModel, machineType: driver.machineType(deviceModel), cpuModel, vmm },
    objects: { memory: await object(image.memory), state: await object(image.state) },
  };
}

async function writeFacts(folder: string, facts: SnapshotFacts): Promise<void> {
  const path = join(folder, FACTS_FILE);
  const text = JSON.stringify({ version: FACTS_VERSION, ...facts });
  await writeFile(`${path}.next`, text, { mode: 0o600, flush: true });
  await rename(`${path}.next`, path);
}
