/** The processes of pulls: one pair a pull, started before it is needed where that can be foreseen. */
import type { ImageFolder, WorkFolder } from './image-folder.ts';
import type { ImageLimits } from './image-limits.ts';
import { makeJail } from './jail-folder.ts';
import { type MakeMessage, startMaker } from './make-root-image.ts';
import { type FetchMessage, startFetcher } from './registry/fetch-layers.ts';
import type { UnprivilegedProcess } from './unprivileged-process.ts';

/** A folder, and two processes that can write to nothing else. They serve one pull, and end with it. */
export interface Workshop extends AsyncDisposable {
  folder: string;
  fetcher: UnprivilegedProcess<FetchMessage>;
  maker: UnprivilegedProcess<MakeMessage>;
}

/** How long a pair waits for the next pull. */
const SPARE_MS = 5 * 60_000;

export class ImageWorkshops implements AsyncDisposable {
  readonly #folder: ImageFolder;
  readonly #limits: ImageLimits;
  readonly #closed = new AbortController();
  #spare: Promise<Workshop> | undefined;
  #expiry: NodeJS.Timeout | undefined;

  constructor(folder: ImageFolder, limits: ImageLimits) {
    this.#folder = folder;
    this.#limits = limits;
  }

  /** Has a pair ready for the next pull. */
  warm(): void {
    if (this.#spare !== undefined || this.#closed.signal.aborted) return;
    const spare = this.#open(this.#closed.signal);
    this.#spare = spare;
    this.#expiry = setTimeout(() => void this.#discard(), SPARE_MS).unref();
    spare.catch(() => {
      if (this.#spare === spare) this.#spare = undefined;
    });
  }

  /** A pair for one pull, which disposes of it. */
  async take(signal: AbortSignal): Promise<Workshop> {
    const spare = await this.#takeSpare()?.catch(() => undefined);
    if (spare && !spare.fetcher.hasEnded && !spare.maker.hasEnded) return spare;
    await spare?.[Symbol.asyncDispose]();
    return await this.#open(signal);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed.abort();
    await this.#discard();
  }

  async #discard(): Promise<void> {
    const spare = await this.#takeSpare()?.catch(() => undefined);
    await spare?.[Symbol.asyncDispose]();
  }

  #takeSpare(): Promise<Workshop> | undefined {
    const spare = this.#spare;
    this.#spare = undefined;
    clearTimeout(this.#expiry);
    return spare;
  }

  async #open(signal: AbortSignal): Promise<Workshop> {
    const work: WorkFolder = await this.#folder.spareWork(signal);
    const processes: AsyncDisposable[] = [];
    const dispose = async (): Promise<void> => {
      await Promise.all(processes.map((one) => one[Symbol.asyncDispose]()));
      await work[Symbol.asyncDispose]();
    };
    try {
      const folder = await makeJail(work.path);
      const fetcher = startFetcher(folder, this.#limits);
      processes.push(fetcher);
      const maker = startMaker(folder, this.#limits);
      processes.push(maker);
      return { folder, fetcher, maker, [Symbol.asyncDispose]: dispose };
    } catch (error) {
      await dispose();
      throw error;
    }
  }
}
