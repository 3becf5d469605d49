import type { BuildAssignment, BuildReport } from '@releap/contract/runner';
import type { Logger } from 'pino';
import type { ImageStore } from '../image/image-store.ts';
import type { KindHandler } from '../link/kind-handler.ts';

/** A registry may be slow and an image large; the store's own steps have shorter deadlines. */
const BUILD_DEADLINE_MS = 40 * 60_000;

export interface ImageBuildsOptions {
  images: Pick<ImageStore, 'ensure'>;
  report: (report: BuildReport) => void;
  log: Logger;
}

interface Running {
  attempt: number;
  controller: AbortController;
  done: Promise<void>;
}

/**
 * The image builds that control has leased to this machine. A build may be assigned again after a reconnect: the same
 * attempt continues, a newer one replaces it. A build that is cancelled, or that a sync does not name, is stopped.
 */
export class ImageBuilds implements KindHandler<'build'> {
  readonly kind = 'build';
  readonly #options: ImageBuildsOptions;
  readonly #running = new Map<string, Running>();

  constructor(options: ImageBuildsOptions) {
    this.#options = options;
  }

  assign(assignment: BuildAssignment): void {
    const { id, generation } = assignment;
    const known = this.#running.get(id);
    if (known !== undefined && known.attempt > generation) return;
    if (assignment.desired === 'cancelled') return this.#cancel(assignment, known);
    if (known?.attempt === generation) return;
    known?.controller.abort(new Error('superseded by a newer attempt'));
    const controller = new AbortController();
    const done = this.#build(assignment, controller.signal).finally(() => {
      if (this.#running.get(id)?.controller === controller) this.#running.delete(id);
    });
    this.#running.set(id, { attempt: generation, controller, done });
  }

  synced(named: ReadonlySet<string>): void {
    for (const [id, { controller }] of this.#running) {
      if (named.has(id)) continue;
      this.#options.log.info({ job: id }, 'stopping a build that is no longer assigned');
      this.#running.delete(id);
      controller.abort(new Error('it is no longer assigned'));
    }
  }

  async close(): Promise<void> {
    for (const { controller } of this.#running.values()) controller.abort(new Error('the runner stops'));
    await Promise.all([...this.#running.values()].map(({ done }) => done));
  }

  #cancel({ id, generation }: BuildAssignment, known: Running | undefined): void {
    const { log, report } = this.#options;
    this.#running.delete(id);
    known?.controller.abort(new Error('cancelled'));
    log.info({ job: id, running: known !== undefined }, 'a build was cancelled');
    void (known?.done ?? Promise.resolve()).then(() =>
      report({ kind: 'build', id, generation, status: 'cancelled', detail: {} }),
    );
  }

  async #build(assignment: BuildAssignment, cancelled: AbortSignal): Promise<void> {
    const { images, report, log } = this.#options;
    const { id, generation, spec } = assignment;
    const startedAt = Date.now();
    try {
      const signal = AbortSignal.any([cancelled, AbortSignal.timeout(BUILD_DEADLINE_MS)]);
      const image = await images.ensure(spec.root, {
        signal,
        onProgress: ({ phase, message }) => log.debug({ job: id, phase }, message),
      });
      if (cancelled.aborted) return;
      log.info({ job: id, digest: image.digest, ms: Date.now() - startedAt }, 'image ready');
      const detail = { manifest_name: image.digest, layer_count: image.layerCount };
      report({ kind: 'build', id, generation, status: 'done', detail });
    } catch (error) {
      // A build that is stopped has no result: control does not wait for it, or leases it again.
      if (cancelled.aborted) return;
      const message = error instanceof Error ? error.message : String(error);
      log.warn({ job: id, err: error }, 'image build failed');
      report({ kind: 'build', id, generation, status: 'failed', detail: { error: message } });
    }
  }
}
