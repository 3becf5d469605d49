import type { SuspendImage } from './suspend-image.ts';

interface Run {
  controller: AbortController;
  done: Promise<void>;
  /** The phase in which this run, or the previous one, writes to the folder of the image. */
  marking: Promise<void> | undefined;
}

/** Makes suspend images durable in the background. */
export class BackgroundDurability {
  readonly #runs = new Map<string, Run>();

  /** Resolves when the image is durable, or was stopped. */
  async run(vmId: string, image: SuspendImage): Promise<void> {
    const last = this.#runs.get(vmId);
    last?.controller.abort();
    const run: Run = { controller: new AbortController(), done: Promise.resolve(), marking: last?.marking };
    this.#runs.set(vmId, run);
    run.done = this.#run(run, image).finally(() => {
      if (this.#runs.get(vmId) === run) this.#runs.delete(vmId);
    });
    await run.done;
  }

  async #run(run: Run, image: SuspendImage): Promise<void> {
    const { signal } = run.controller;
    // Both runs would write the same file.
    await run.marking?.catch(() => undefined);
    const suspension = await image.flush(signal).catch((error: unknown) => {
      // The image is being removed.
      if (!signal.aborted) throw error;
    });
    if (suspension === undefined || signal.aborted) return;
    run.marking = image.markDurable(suspension, signal);
    await run.marking;
  }

  /** The image is about to be resumed: from here on it is not marked as durable. */
  abort(vmId: string): void {
    this.#runs.get(vmId)?.controller.abort();
  }

  /** Resolves when nothing writes to the folder of the image any more, so that it may be removed. Does not wait for a flush. */
  async stop(vmId: string): Promise<void> {
    this.abort(vmId);
    await this.#runs.get(vmId)?.marking?.catch(() => undefined);
  }

  /** Resolves when no run is in progress. */
  async idle(): Promise<void> {
    await Promise.allSettled([...this.#runs.values()].map(({ done }) => done));
  }
}
