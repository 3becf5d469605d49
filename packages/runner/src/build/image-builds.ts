import type { BuildJob, BuildResult } from '@releap/contract';
import type { Logger } from 'pino';
import type { ImageStore } from '../image/image-store.ts';

/** A registry may be slow and an image large; the store's own steps have shorter deadlines. */
const BUILD_DEADLINE_MS = 40 * 60_000;

export interface ImageBuildsOptions {
  images: ImageStore;
  onResult: (result: BuildResult) => void;
  log: Logger;
}

/**
 * The image builds that control has leased to this machine. A job may be told again after a reconnect: the same
 * attempt goes on, a newer one replaces it.
 */
export class ImageBuilds {
  readonly #options: ImageBuildsOptions;
  readonly #running = new Map<
    string,
    { attempt: number; controller: AbortController; done: Promise<void> }
  >();

  constructor(options: ImageBuildsOptions) {
    this.#options = options;
  }

  take(job: BuildJob): void {
    const known = this.#running.get(job.job_id);
    if (known && known.attempt >= job.attempt) return;
    known?.controller.abort(new Error('superseded by a newer attempt'));
    const controller = new AbortController();
    const done = this.#build(job, controller.signal).finally(() => {
      if (this.#running.get(job.job_id)?.attempt === job.attempt) this.#running.delete(job.job_id);
    });
    this.#running.set(job.job_id, { attempt: job.attempt, controller, done });
  }

  async close(): Promise<void> {
    for (const { controller } of this.#running.values()) controller.abort(new Error('the runner stops'));
    await Promise.all([...this.#running.values()].map(({ done }) => done));
  }

  async #build(job: BuildJob, cancelled: AbortSignal): Promise<void> {
    const { images, onResult, log } = this.#options;
    const { job_id, attempt } = job;
    const startedAt = Date.now();
    try {
      const signal = AbortSignal.any([cancelled, AbortSignal.timeout(BUILD_DEADLINE_MS)]);
      const image = await images.ensure(job.root, {
        signal,
        onProgress: ({ phase, message }) => log.debug({ job: job_id, phase }, message),
      });
      log.info({ job: job_id, digest: image.digest, ms: Date.now() - startedAt }, 'image ready');
      onResult({ job_id, attempt, manifest_name: image.digest, layer_count: image.layerCount });
    } catch (error) {
      // A cancelled build has no result: its lease ends, and control hands the job out again.
      if (cancelled.aborted) return;
      const message = error instanceof Error ? error.message : String(error);
      log.warn({ job: job_id, err: error }, 'image build failed');
      onResult({ job_id, attempt, error: message });
    }
  }
}
