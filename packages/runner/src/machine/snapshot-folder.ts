import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { syncLarge, syncPath } from '../disk/sync-path.ts';
import type { ImageConfig } from '../image/image-config.ts';
import type { Shape } from '../template/shape.ts';
import type { Accelerator } from '../vmm/accelerator.ts';

const SNAPSHOT_ID = /^[0-9a-f-]{36}$/;
const FACTS = 'snapshot.json';

/** What is known of a snapshot that lies here. */
export interface SnapshotFacts {
  kind: 'disk' | 'full';
  vmId: string;
  /** Digest of the root image that its disk lies on. */
  manifest: string;
  /** What that image says of itself. */
  image: ImageConfig;
  noChanges: boolean;
  /** Bytes of its own layer. */
  diskBytes: number;
  /** Size that the guest sees. */
  scratchBytes: number;
  /** Of a full one. */
  memory?: { shape: Shape; vmm: string; hostCpu: string; accelerator: Accelerator };
}

/**
 * The snapshots of one service, a folder each: layers of the disk with their list, the root image under a second name,
 * and of a full one memory, device state and what it belongs to. A folder has its name when all of it is on the
 * platters, and not before.
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

  /** Undefined when it is not here. */
  async load(id: string): Promise<SnapshotFacts | undefined> {
    try {
      return JSON.parse(await readFile(join(this.path(id), FACTS), 'utf8')) as SnapshotFacts;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw error;
    }
  }

  /** @throws when it is not here */
  async open(id: string): Promise<{ folder: string; facts: SnapshotFacts }> {
    const facts = await this.load(id);
    if (facts === undefined) throw new Error(`snapshot ${id} is not on this machine any more`);
    return { folder: this.path(id), facts };
  }

  /** An empty folder to make a snapshot in, whatever an earlier try has left. */
  async begin(id: string): Promise<string> {
    const folder = `${this.path(id)}.partial`;
    await rm(folder, { recursive: true, force: true });
    await mkdir(folder, { recursive: true, mode: 0o700 });
    return folder;
  }

  /** Makes it one. */
  async complete(id: string, facts: SnapshotFacts): Promise<void> {
    const folder = `${this.path(id)}.partial`;
    await writeFile(join(folder, FACTS), JSON.stringify(facts), { mode: 0o600 });
    for (const name of await readdir(folder)) await syncLarge(join(folder, name));
    await syncPath(folder);
    await rename(folder, this.path(id));
    await syncPath(this.#root);
  }

  /** What a failed try has left. */
  async abandon(id: string): Promise<void> {
    await rm(`${this.path(id)}.partial`, { recursive: true, force: true });
  }

  /** Those that begin with its files have them under names of their own. */
  async remove(id: string): Promise<void> {
    // Away with its name first: half a snapshot must never be found.
    const away = `${this.path(id)}.partial`;
    await rm(away, { recursive: true, force: true });
    await rename(this.path(id), away).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOENT') throw error;
    });
    await rm(away, { recursive: true, force: true });
  }

  /** Ids of those that are finished. */
  async finished(): Promise<string[]> {
    const names = await readdir(this.#root).catch(() => [] as string[]);
    return names.filter((id) => SNAPSHOT_ID.test(id));
  }

  /** Ids of all, and of what was never finished. */
  async list(): Promise<string[]> {
    const names = await readdir(this.#root).catch(() => [] as string[]);
    return [...new Set(names.map((name) => name.replace(/\.partial$/, '')))].filter((id) =>
      SNAPSHOT_ID.test(id),
    );
  }
}
