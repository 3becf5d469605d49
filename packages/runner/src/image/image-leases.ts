/** Images that are in use here, and are kept however full the cache is. */
import type { Logger } from 'pino';
import type { ImageFolder } from './image-folder.ts';

/** While held, the image is not removed. */
export interface ImageLease extends Disposable {
  release(): void;
}

/** How often images in use are marked as such for other processes; shorter than what they take for unused. */
const TOUCH_MS = 5 * 60_000;

export class ImageLeases implements Disposable {
  readonly #folder: ImageFolder;
  readonly #log: Logger;
  readonly #counts = new Map<string, number>();
  readonly #touching: NodeJS.Timeout;

  constructor(folder: ImageFolder, log: Logger) {
    this.#folder = folder;
    this.#log = log;
    this.#touching = setInterval(() => void this.#touch(), TOUCH_MS).unref();
  }

  has(digest: string): boolean {
    return this.#counts.has(digest);
  }

  /** Several of one image may be held. */
  take(digest: string): ImageLease {
    this.#counts.set(digest, (this.#counts.get(digest) ?? 0) + 1);
    let held = true;
    const release = (): void => {
      if (!held) return;
      held = false;
      const left = (this.#counts.get(digest) ?? 1) - 1;
      if (left > 0) this.#counts.set(digest, left);
      else this.#counts.delete(digest);
    };
    return { release, [Symbol.dispose]: release };
  }

  [Symbol.dispose](): void {
    clearInterval(this.#touching);
  }

  async #touch(): Promise<void> {
    for (const digest of this.#counts.keys()) {
      await this.#folder.touch(digest).catch((error: unknown) => {
        this.#log.warn({ err: error, digest }, 'cannot mark an image as in use');
      });
    }
  }
}
