/** The processes of pulls: one pair a pull, started before it is needed where that can be foreseen. */
import type { ImageFolder } from './image-folder.ts';
import type { ImageJails } from './image-jails.ts';
import type { ImageLimits } from './image-limits.ts';
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
  readonly #jails: ImageJails;
  readonly #closed = new AbortController();
  #spare: Promise<Workshop> | undefined;
  #expiry: NodeJS.Timeout | undefined;

  constructor(folder: ImageFolder, limits: ImageLimits, jails: ImageJails) {
    this.#jails = jails;
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
    await using opened = new AsyncDisposableStack();
    const work = opened.use(await this.#folder.spareWork(signal));
    const jail = opened.use(await this.#jails.open(work.path));
    const fetcher = opened.use(startFetcher(jail, this.#limits));
    const maker = opened.use(startMaker(jail, this.#limits));
    const all = opened.move();
    return { folder: jail.folder, fetcher, maker, [Symbol.asyncDispose]: () => all.disposeAsync() };
  }
}
