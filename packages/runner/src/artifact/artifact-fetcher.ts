import { setTimeout as sleep } from 'node:timers/promises';
import type { ArtifactPart } from '@releap/contract';
import type { Logger } from 'pino';
import { failpoint } from '../failpoint.ts';
import type { ImageStore } from '../image/image-store.ts';
import { SingleFlight } from '../image/single-flight.ts';
import type { SnapshotFolders } from '../machine/index.ts';
import type { Quarantine } from '../quarantine/quarantine.ts';
import { placeSnapshot } from './snapshot-parts.ts';
import { StoreError, type StoreClient } from './store-client.ts';

export interface ArtifactFetcherOptions {
  client: StoreClient;
  snapshots: SnapshotFolders;
  snapshotQuarantine: Pick<Quarantine, 'restore'>;
  images: ImageStore;
  log: Logger;
}

/** Another host is still uploading it. */
const STORED_POLL_MS = 2_000;

/** Fetches images and disk snapshots from the store that this host does not have. Those who need the same wait for one fetch. */
export class ArtifactFetcher {
  readonly #options: ArtifactFetcherOptions;
  readonly #fetching = new SingleFlight<void>();

  constructor(options: ArtifactFetcherOptions) {
    this.#options = options;
  }

  async hasSnapshot(id: string): Promise<boolean> {
    return (await this.#options.snapshots.load(id)) !== undefined;
  }

  /** @throws when it is neither here nor in the store, or the signal aborts */
  async ensureSnapshot(id: string, signal: AbortSignal): Promise<void> {
    if (await this.hasSnapshot(id)) return;
    const { snapshots, snapshotQuarantine } = this.#options;
    await this.#fetching.run(
      id,
      async (flight) => {
        if ((await snapshotQuarantine.restore(id)) || (await this.hasSnapshot(id))) return;
        await this.#fetch(id, flight, (parts, download) =>
          placeSnapshot(snapshots, id, parts, download, flight),
        );
      },
      { signal },
    );
  }

  /** An image that was built. @throws when it is neither here nor in the store, or the signal aborts */
  async ensureImage(digest: string, signal: AbortSignal | undefined): Promise<void> {
    const { images } = this.#options;
    if ((await images.find(digest)) !== undefined) return;
    await this.#fetching.run(
      digest,
      (flight) =>
        this.#fetch(digest, flight, async (parts, download) => {
          const part = (name: string): ArtifactPart => {
            const found = parts.find((one) => one.name === name);
            if (found === undefined) throw new Error(`the stored image ${digest} has no ${name}`);
            return found;
          };
          await images.place(
            digest,
            {
              root: (path) => download(part('root.squashfs'), path),
              config: (path) => download(part('config.json'), path),
            },
            { signal: flight },
          );
        }),
      { signal },
    );
  }

  async close(): Promise<void> {
    await this.#fetching.close();
  }

  async #fetch(
    ref: string,
    signal: AbortSignal,
    place: (
      parts: readonly ArtifactPart[],
      download: (part: ArtifactPart, path: string) => Promise<void>,
    ) => Promise<void>,
  ): Promise<void> {
    const { client, log } = this.#options;
    const startedAt = performance.now();
    const parts = await this.#partsOf(ref, signal);
    await place(parts, async (part, path) => {
      await client.download(part, path, signal);
      failpoint('artifact:part-fetched');
    });
    failpoint('artifact:placed');
    const bytes = parts.reduce((sum, part) => sum + part.bytes, 0);
    log.info(
      { artifact: ref, bytes, ms: Math.round(performance.now() - startedAt) },
      'fetched from the store',
    );
  }

  async #partsOf(ref: string, signal: AbortSignal): Promise<ArtifactPart[]> {
    for (;;) {
      try {
        return (await this.#options.client.artifact(ref, signal)).parts;
      } catch (error) {
        if (!(error instanceof StoreError) || error.status !== 409) throw error;
      }
      await sleep(STORED_POLL_MS, undefined, { signal });
    }
  }
}
