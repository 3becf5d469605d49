/** Builds Dockerfiles, each in a micro-VM of its own that ends with the build (docs/decisions/0024). */
import { setTimeout as sleep } from 'node:timers/promises';
import type { DockerfileRoot } from '@releap/contract';
import type { Logger } from 'pino';
import { Semaphore } from '../budget/semaphore.ts';
import { BUILDER_IMAGE } from '../image/builtin/builder.ts';
import { type BuiltImage, dockerfileAlias, type DockerfileBuild } from '../image/dockerfile-images.ts';
import { ImageError } from '../image/image-error.ts';
import { DEFAULT_IMAGE_LIMITS } from '../image/image-limits.ts';
import type { ImageStore, RootImage } from '../image/image-store.ts';
import type { Admission, Machines } from '../machine/index.ts';
import { InsufficientMemoryError } from '../memory/available-memory.ts';
import type { MemoryGrant } from '../memory/memory-budget.ts';
import type { Network } from '../network/network.ts';
import type { BuildCaches, CacheDisk } from './build-caches.ts';
import { prepareCommand } from './build-commands.ts';
import type { OpenBlob } from './build-context.ts';
import { buildFailed } from './build-error.ts';
import { timeText } from './build-limits.ts';
import type { BuildLimits } from './build-limits.ts';
import { BuildOutput } from './build-output.ts';
import { BuildVm } from './build-vm.ts';
import { credentialOf } from './base-images.ts';
import type { FinishedBuild } from './finished-builds.ts';
import { runBuild } from './run-build.ts';

export interface DockerfileBuildsOptions {
  machines: Machines;
  network: Network;
  admission: Admission;
  images: Pick<ImageStore, 'acquire' | 'digestOf' | 'withLayers'>;
  caches: BuildCaches;
  openBlob: OpenBlob;
  limits: BuildLimits;
  log: Logger;
}

/** How often a build that waits for memory looks for it. */
const MEMORY_RETRY_MS = 2_000;
const MIB = 2 ** 20;

export class DockerfileBuilds {
  readonly #options: DockerfileBuildsOptions;
  readonly #turns: Semaphore;

  constructor(options: DockerfileBuildsOptions) {
    this.#options = options;
    this.#turns = new Semaphore(options.limits.parallel);
  }

  /** @throws ImageError whose message is fit for the user */
  async build(root: DockerfileRoot, build: DockerfileBuild): Promise<BuiltImage> {
    const { caches, images } = this.#options;
    const { signal } = build;
    try {
      const unchanged = await this.#unchanged(root, build);
      if (unchanged) return unchanged;
      // The cache first: a build that waits for it holds up only its own project.
      await using cache = await caches.open(root.project_id, signal);
      using _turn = await this.#turns.acquire(signal);
      using image = await images.acquire({ type: 'builtin', name: BUILDER_IMAGE }, { signal });
      using memory = await this.#memory(root, signal);
      return await this.#inTime(root, build, cache, image.image, memory);
    } catch (error) {
      if (signal.aborted) throw new ImageError('aborted', 'the build was cancelled', { cause: error });
      throw error;
    }
  }

  /** What an earlier build of the same Dockerfile, context and base images has made, if that is here and its cache is kept. */
  async #unchanged(
    root: DockerfileRoot,
    { signal, known, onOutput }: DockerfileBuild,
  ): Promise<BuiltImage | undefined> {
    const { caches, images } = this.#options;
    const { project_id: project } = root;
    const finished = await caches.finished(project, dockerfileAlias(root));
    const digest = finished && (await known(finished.imageId));
    if (finished === undefined || digest === undefined) return undefined;
    for (const base of finished.bases) {
      const resolve = async (): Promise<string> =>
        await images.digestOf(base.name, credentialOf(root, base.name), signal, project);
      // One that cannot be resolved fails the build, which says so.
      const now = await resolve().catch(() => undefined);
      signal.throwIfAborted();
      if (now !== base.digest) return undefined;
    }
    new BuildOutput(onOutput).note('the Dockerfile, its context and its base images have not changed');
    return { digest, imageId: finished.imageId };
  }

  /** Within the time of a build, which begins when nothing is waited for any more. */
  async #inTime(
    root: DockerfileRoot,
    build: DockerfileBuild,
    cache: CacheDisk,
    image: RootImage,
    memory: MemoryGrant,
  ): Promise<BuiltImage> {
    const { images, limits, openBlob } = this.#options;
    const deadline = AbortSignal.timeout(limits.timeMs);
    const signal = AbortSignal.any([build.signal, deadline]);
    try {
      await using vm = await this.#prepared(image, cache, signal);
      memory.used();
      let finished: FinishedBuild | undefined;
      try {
        const imageLimits = DEFAULT_IMAGE_LIMITS;
        const options = { ...build, signal, vm, images, limits, imageLimits, openBlob };
        const { image: built, bases } = await runBuild(root, options);
        if (bases) finished = { key: dockerfileAlias(root), imageId: built.imageId, bases };
        return built;
      } finally {
        if (!signal.aborted && (await vm.powerOff())) cache.keep(finished);
      }
    } catch (error) {
      if (!deadline.aborted || build.signal.aborted) throw error;
      throw buildFailed(`the build ran out of its time of ${timeText(limits.timeMs)}`);
    }
  }

  /** A micro-VM that is ready to build. A layer cache that it cannot use is made anew, once. */
  async #prepared(image: RootImage, cache: CacheDisk, signal: AbortSignal): Promise<BuildVm> {
    const { machines, network, admission, limits, log } = this.#options;
    for (let isRetry = false; ; isRetry = true) {
      try {
        const disk = cache.path;
        const vm = await BuildVm.start({ machines, network, admission, image, disk, limits, signal, log });
        try {
          const { exitCode, stderr } = await vm.run(prepareCommand(limits), { signal });
          if (exitCode !== 0) throw new Error(`a build VM cannot be prepared: ${stderr.trim()}`);
          return vm;
        } catch (error) {
          await vm[Symbol.asyncDispose]();
          throw error;
        }
      } catch (error) {
        if (signal.aborted || isRetry) throw error;
        log.warn({ err: error, disk: cache.path }, 'a layer cache of builds is made anew');
        await cache.recreate();
      }
    }
  }

  /** Waits until the host has memory for the micro-VM. The control plane sees what is held. */
  async #memory(root: DockerfileRoot, signal: AbortSignal): Promise<MemoryGrant> {
    const { machines, limits } = this.#options;
    for (;;) {
      try {
        const owner = { origin: `builds of ${root.project_id}`, project: root.project_id };
        return await machines.memoryBudget.admit('a build of a Dockerfile', owner, limits.memMib * MIB);
      } catch (error) {
        if (!(error instanceof InsufficientMemoryError)) throw error;
        await sleep(MEMORY_RETRY_MS, undefined, { signal });
      }
    }
  }
}
