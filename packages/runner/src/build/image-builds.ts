import type { BuildAssignment, BuildReport } from '@releap/contract/runner';
import type { Logger } from 'pino';
import type { ImageStore } from '../image/image-store.ts';
import type { KindHandler } from '../link/kind-handler.ts';
import { BuildLog } from '../logs/build-log.ts';
import type { LogFile } from '../logs/log-file.ts';

/** Of a registry's image. A registry may be slow and an image large; the store's own steps have shorter deadlines. */
const BUILD_DEADLINE_MS = 40 * 60_000;

export interface ImageBuildsOptions {
  images: Pick<ImageStore, 'ensure'>;
  /** Path of the log of a job. */
  logPath: (jobId: string) => string;
  report: (report: BuildReport) => void;
  log: Logger;
}

interface Running {
  attempt: number;
  controller: AbortController;
  /** Absent where nothing is printed: only Dockerfiles are built in steps. */
  log: BuildLog | undefined;
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
    const isDockerfile = assignment.spec.root.type === 'dockerfile';
    const log = isDockerfile ? new BuildLog(this.#options.logPath(id)) : undefined;
    const done = this.#build(assignment, controller.signal, log).finally(() => {
      if (this.#running.get(id)?.controller === controller) this.#running.delete(id);
    });
    this.#running.set(id, { attempt: generation, controller, log, done });
  }

  /** The open log of a build that runs here. */
  log(jobId: string): LogFile | undefined {
    return this.#running.get(jobId)?.log?.file;
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

  async #build(
    assignment: BuildAssignment,
    cancelled: AbortSignal,
    buildLog: BuildLog | undefined,
  ): Promise<void> {
    const { images, report, log } = this.#options;
    const { id, generation, spec } = assignment;
    const startedAt = Date.now();
    try {
      // A build of a Dockerfile has a deadline of its own, which begins when it is its turn.
      const deadlines = buildLog === undefined ? [AbortSignal.timeout(BUILD_DEADLINE_MS)] : [];
      const image = await images.ensure(spec.root, {
        signal: AbortSignal.any([cancelled, ...deadlines]),
        rebuild: true,
        onOutput: (chunk) => buildLog?.write(chunk),
        onProgress: ({ phase, message }) => log.debug({ job: id, phase }, message),
      });
      if (cancelled.aborted) return await buildLog?.close();
      log.info({ job: id, digest: image.digest, ms: Date.now() - startedAt }, 'image ready');
      await buildLog?.close();
      const detail = {
        manifest_name: image.digest,
        layer_count: image.layerCount,
        bytes: image.sizeBytes,
        ...(buildLog && { log_tail: buildLog.tail }),
      };
      report({ kind: 'build', id, generation, status: 'done', detail });
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      buildLog?.write(Buffer.from(`[releap] ${message}\n`));
      await buildLog?.close();
      // A build that is stopped has no result: control does not wait for it, or leases it again.
      if (cancelled.aborted) return;
      log.warn({ job: id, err: error }, 'image build failed');
      const detail = { error: message, ...(buildLog && { log_tail: buildLog.tail }) };
      report({ kind: 'build', id, generation, status: 'failed', detail });
    }
  }
}
