/**
 * Root images by digest: fetched and made once, kept, shared by all processes that use the same cache folder.
 * The guarantees about keys, locks, publishing and crashes are in `docs/images.md`.
 */
import { stat } from 'node:fs/promises';
import type { ImageReference, RootSource } from '@releap/contract';
import type { Logger } from 'pino';
import { ensureBuiltin } from './builtin-images.ts';
import { dockerfileAlias, DockerfileImages } from './dockerfile-images.ts';
import { type BuildContext, buildFromRegistry, fetchLayersOf, type ImageProgress } from './image-builder.ts';
import type { PullContext } from './image-builder.ts';
import { ImageError, toImageError } from './image-error.ts';
import { CachedImages } from './cached-images.ts';
import { ImageFolder, type RootImage } from './image-folder.ts';
import { collectGarbage } from './image-garbage.ts';
import { cacheStats } from './image-stats.ts';
import { DEFAULT_IMAGE_LIMITS, type ImageLimits } from './image-limits.ts';
import { ImageJails } from './image-jails.ts';
import { ImageWorkshops } from './image-workshops.ts';
import { ImageResolver, checkDigest, parseReference, repositoryOf } from './image-resolver.ts';
import { Semaphore } from '../budget/semaphore.ts';
import type { EnsureOptions, FetchedImage, ImageStats, ImageStoreOptions } from './image-store-options.ts';
import { ImageLeases, type ImageLease } from './image-leases.ts';
import { type PullAccess, pullAccess, type PullCredential } from './pull-access.ts';
import { PullQueue } from './pull-queue.ts';
import { AddressPolicy } from './registry/address-policy.ts';
import { RegistryLogin } from './registry/registry-login.ts';
import { placeImage } from './place-image.ts';
import { SingleFlight } from './single-flight.ts';
import { addWholeImage } from './whole-image.ts';

export { ImageError } from './image-error.ts';
export type { ImageProgress } from './image-builder.ts';
export type { ImageConfig } from './image-config.ts';
export type { RootImage } from './image-folder.ts';
export type { ImageLease } from './image-leases.ts';
export type { FetchedImage } from './image-store-options.ts';

const NO_SHARE: Disposable = { [Symbol.dispose]: () => undefined };

export class ImageStore {
  readonly #log: Logger;
  readonly #limits: ImageLimits;
  readonly #folder: ImageFolder;
  readonly #packagesDir: string | undefined;
  readonly #resolver: ImageResolver;
  readonly #cache: CachedImages;
  readonly #leases: ImageLeases;
  readonly #building = new SingleFlight<RootImage, ImageProgress>();
  readonly #makers: Semaphore;
  readonly #pulls: PullQueue;
  readonly #jails: ImageJails;
  readonly #workshops: ImageWorkshops;
  readonly #policy: AddressPolicy;
  readonly #logins: RegistryLogin;
  readonly #dockerfiles: DockerfileImages | undefined;
  readonly #fetchStored: ImageStoreOptions['fetchStored'];
  #prepared: Promise<void> | undefined;
  #ready = false;
  #closed = false;

  constructor(options: ImageStoreOptions) {
    this.#log = options.log;
    this.#limits = { ...DEFAULT_IMAGE_LIMITS, ...options.limits };
    this.#folder = new ImageFolder(options.cacheDir);
    this.#cache = new CachedImages(this.#folder, this.#log);
    this.#leases = new ImageLeases(this.#folder, this.#log);
    this.#policy = new AddressPolicy(options.privateHosts ?? []);
    this.#logins = new RegistryLogin(options.ecrEndpoint);
    this.#resolver = new ImageResolver(this.#folder, this.#limits, this.#policy);
    this.#packagesDir = options.packagesDir;
    this.#fetchStored = options.fetchStored;
    this.#makers = new Semaphore(this.#limits.parallelMakes);
    this.#pulls = new PullQueue(this.#limits.pulls);
    this.#jails = new ImageJails(options.groups);
    this.#workshops = new ImageWorkshops(this.#folder, this.#limits, this.#jails);
    const { buildDockerfile: build } = options;
    this.#dockerfiles =
      build &&
      new DockerfileImages({
        build,
        folder: this.#folder,
        limits: this.#limits,
        jails: this.#jails,
        builders: this.#makers,
        flights: this.#building,
        find: (alias) => this.#cache.findAlias(alias),
        setAlias: async (work, alias, digest) => {
          await this.#folder.writeAlias(work, alias, { digest });
          this.#cache.aliases.set(alias, digest);
        },
        onBuilt: () => this.#tidy(),
      });
  }

  /** Makes the folders and reclaims what a crash left. `ensure` waits for it by itself. @throws ImageError */
  async start(): Promise<void> {
    this.#prepared ??= this.#folder.prepare().then(
      (removed) => {
        this.#ready = true;
        if (removed > 0) this.#log.info({ removed }, 'removed unfinished image work of an earlier run');
      },
      (error: unknown) => {
        this.#prepared = undefined;
        throw toImageError(error, `preparing the image cache ${this.#folder.dir}`);
      },
    );
    await this.#prepared;
  }

  /** Cancels what is under way and waits for its end. Nothing may be asked afterwards. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#leases[Symbol.dispose]();
    await Promise.all([this.#resolver.close(), this.#building.close(), this.#logins.close()]);
    await this.#workshops[Symbol.asyncDispose]();
    await this.#folder.synced();
  }

  /**
   * The root image of a source: at once when it is cached, else fetched and made.
   * @throws ImageError whose message is fit for the user.
   */
  async ensure(source: RootSource, options: EnsureOptions = {}): Promise<RootImage> {
    if (this.#closed) throw new ImageError('aborted', 'the image store is closed');
    if (!this.#ready) await this.start();
    if (source.type === 'builtin') return await this.#ensureBuiltin(source.name, options);
    if (source.type === 'stored') return await this.#ensureStored(source.digest, options.signal);
    if (source.type === 'dockerfile') {
      if (this.#dockerfiles) return await this.#dockerfiles.ensure(source, options);
      throw new ImageError('unsupported', 'this host builds no Dockerfiles (RELEAP_BUILDS is 0)');
    }
    const reference = parseReference(source.ref);
    const { credential } = source;
    const cached = await this.#cache.ofRegistry(source, reference, this.#resolver);
    if (cached) return cached;

    if (source.no_credential !== undefined) throw new ImageError('unauthorized', source.no_credential);
    const pinned =
      source.digest === undefined ? reference : { ...reference, digest: checkDigest(source.digest) };
    options.onProgress?.({
      phase: 'resolve',
      message: `asking ${reference.host} for ${reference.canonical}`,
    });
    const access = this.#access(reference, credential, source.project_id);
    const resolved = await this.#resolver.resolve(pinned, credential, access.login, options.signal);
    const { digest } = resolved;
    const ready = await this.find(digest);
    if (ready) return ready;
    // By repository too: a tenant that names the digest of another one's image waits for its own registry alone.
    const key = `${digest} ${repositoryOf(reference)}`;
    const enter = (signal: AbortSignal): Promise<Disposable> => this.#pulls.acquire(access.owner, signal);
    const make = async (context: PullContext, share: Disposable): Promise<string> => {
      if ((await this.find(digest)) !== undefined) return digest;
      await buildFromRegistry(context, pinned, resolved, await access.of(context.signal, share));
      return digest;
    };
    return await this.#build(key, options, make, enter);
  }

  #access(
    reference: ImageReference,
    credential: PullCredential | undefined,
    projectId: string | undefined,
  ): PullAccess {
    const by = { logins: this.#logins, policy: this.#policy };
    return pullAccess(by, reference, credential, projectId);
  }

  /**
   * Keeps an image from being removed until `unpin`, whatever the size of the cache: it cannot be fetched again.
   * @returns false when it is not here
   */
  async pin(digest: string): Promise<boolean> {
    return await this.#folder.pin(digest);
  }

  async unpin(digest: string): Promise<void> {
    await this.#folder.unpin(digest);
  }

  /** What the cache holds, and how many pulls run and wait. */
  async stats(): Promise<ImageStats> {
    const cache = await cacheStats(this.#folder, this.#limits);
    return { ...cache, pulls: { running: this.#pulls.running, waiting: this.#pulls.waiting } };
  }

  /**
   * Fetches a registry's image, without making a root image of it, and lets `use` read its layers. They are unpacked, and
   * stay in the cache as long as it has space for them.
   * @param projectId whose pull it is @throws ImageError whose message is fit for the user
   */
  async withLayers<T>(
    ref: string,
    credential: PullCredential | undefined,
    signal: AbortSignal,
    use: (image: FetchedImage) => Promise<T>,
    projectId?: string,
  ): Promise<T> {
    if (!this.#ready) await this.start();
    const reference = parseReference(ref);
    try {
      const access = this.#access(reference, credential, projectId);
      const resolved = await this.#resolver.resolve(reference, credential, access.login, signal);
      using share = await this.#pulls.acquire(access.owner, signal);
      await using work = await this.#folder.work(
        `layers ${resolved.digest} ${repositoryOf(reference)}`,
        signal,
      );
      const context = this.#context(work.path, signal, () => undefined);
      const fetched = await fetchLayersOf(context, reference, resolved, await access.of(signal, share));
      return await use({ digest: resolved.digest, ...fetched });
    } catch (error) {
      throw toImageError(error, `fetching ${reference.canonical}`);
    }
  }

  /** What a reference means now. @returns the digest of its image for our platform @throws ImageError */
  async digestOf(
    ref: string,
    credential: PullCredential | undefined,
    signal: AbortSignal,
    projectId?: string,
  ): Promise<string> {
    const reference = parseReference(ref);
    const access = this.#access(reference, credential, projectId);
    return (await this.#resolver.resolve(reference, credential, access.login, signal)).digest;
  }

  /** Like `ensure`, with a lease that no removal can come before. */
  async acquire(source: RootSource, options: EnsureOptions = {}): Promise<ImageLease & { image: RootImage }> {
    const image = await this.ensure(source, options);
    return { ...this.lease(image.digest), image };
  }

  /** Whether `ensure` would answer at once, without a registry or a build. */
  async has(source: RootSource): Promise<boolean> {
    if (!this.#ready) await this.start();
    if (source.type === 'registry')
      return (await this.#cache.ofRegistry(source, parseReference(source.ref), this.#resolver)) !== undefined;
    if (source.type === 'stored') return (await this.find(checkDigest(source.digest))) !== undefined;
    const alias = source.type === 'builtin' ? `builtin-${source.name}` : dockerfileAlias(source);
    return (await this.#cache.findAlias(alias)) !== undefined;
  }

  /** The image of a digest, if it is here. */
  async find(digest: string): Promise<RootImage | undefined> {
    return await this.#cache.find(digest);
  }

  /**
   * An image that is here, in one file that has been fsynced: for what outlives this boot of the machine, or leaves it.
   * @throws ImageError
   */
  async whole(digest: string, signal?: AbortSignal): Promise<RootImage> {
    let image = await this.find(digest);
    if (image === undefined) throw new ImageError('not-found', `the image ${digest} is not on this host`);
    if (image.parts !== undefined) {
      image = await this.#build(`whole ${digest}`, { signal }, async ({ folder, work, signal: ending }) => {
        // Another process may have added it.
        this.#cache.forget(digest);
        const now = await this.find(digest);
        if (now !== undefined) await addWholeImage(folder, work, now, ending);
        this.#cache.forget(digest);
        return digest;
      });
    }
    try {
      await this.#folder.makeDurable(digest);
    } catch (error) {
      throw toImageError(error, 'writing the image to the disk');
    }
    return image;
  }

  /** The files of an image, to copy it elsewhere, with their sizes. Undefined when it is not here. */
  async files(
    digest: string,
    signal?: AbortSignal,
  ): Promise<Record<'root' | 'config', { path: string; bytes: number }> | undefined> {
    if ((await this.find(digest)) === undefined) return undefined;
    await this.whole(digest, signal);
    const { root, config } = this.#folder.files(digest);
    const file = async (path: string) => ({ path, bytes: (await stat(path)).size });
    return { root: await file(root), config: await file(config) };
  }

  /** Publishes an image that another host has made. `files` write its two files to the given paths. @throws ImageError */
  async place(
    digest: string,
    files: Record<'root' | 'config', (path: string) => Promise<void>>,
    options: EnsureOptions,
  ): Promise<RootImage> {
    if (!this.#ready) await this.start();
    return await this.#build(digest, options, async ({ folder, work }) => {
      if ((await this.find(digest)) === undefined) await placeImage(folder, work, digest, files);
      return digest;
    });
  }

  /** Keeps the image from being removed until released. Several may be held. */
  lease(digest: string): ImageLease {
    return this.#leases.take(digest);
  }

  /** Takes an image out of the cache. False when it is in use or not there. */
  async remove(digest: string): Promise<boolean> {
    if (this.#leases.has(digest)) return false;
    this.#cache.forget(digest);
    return await this.#folder.discard(digest);
  }

  /** Removes what exceeds the stated bounds; runs by itself after each build. Returns the bytes freed. */
  async gc(): Promise<number> {
    const freed = await collectGarbage(this.#folder, this.#limits, (digest) => this.#leases.has(digest));
    if (freed.images + freed.layers > 0) this.#log.info(freed, 'tidied up the image cache');
    return freed.bytes;
  }

  #tidy(): void {
    this.gc().catch((error: unknown) => this.#log.warn({ err: error }, 'cannot tidy up the image cache'));
  }

  /**
   * Runs `make` with a work folder that only one process at a time has for `key`; it has to see for itself whether the
   * image has appeared meanwhile, and says which one it is.
   * @param enter waits for a share of something scarce, before the lock: what waits holds nothing that others need
   */
  async #build(
    key: string,
    options: EnsureOptions,
    make: (context: PullContext, share: Disposable) => Promise<string>,
    enter = (_signal: AbortSignal): Promise<Disposable> => Promise.resolve(NO_SHARE),
  ): Promise<RootImage> {
    const run = async (signal: AbortSignal, report: BuildContext['report']): Promise<RootImage> => {
      const started = performance.now();
      try {
        signal.throwIfAborted();
        report({ phase: 'wait', message: 'waiting for its turn' });
        using share = await enter(signal);
        await using work = await this.#folder.work(key, signal);
        const context = this.#context(work.path, signal, report);
        const digest = await make(context, share);
        const image = await this.find(digest);
        if (!image) throw new ImageError('failed', `the image ${digest} vanished right after it was made`);
        const ms = Math.round(performance.now() - started);
        this.#log.info({ image: key, digest, bytes: image.sizeBytes, ms }, 'image is ready');
        this.#tidy();
        return image;
      } catch (error) {
        throw toImageError(error, 'making the image');
      }
    };
    return await this.#building.run(key, run, options);
  }

  #context(work: string, signal: AbortSignal, report: BuildContext['report']): PullContext {
    const turn = (): Promise<Disposable> => this.#makers.acquire(signal);
    return {
      folder: this.#folder,
      limits: this.#limits,
      work,
      signal,
      report,
      turn,
      jails: this.#jails,
      workshops: this.#workshops,
    };
  }

  async #ensureStored(digest: string, signal: AbortSignal | undefined): Promise<RootImage> {
    const image = await this.find(checkDigest(digest));
    if (image) return image;
    await this.#fetchStored?.(digest, signal);
    const fetched = await this.find(digest);
    if (fetched) return fetched;
    throw new ImageError('not-found', `the image ${digest} is not on this host`);
  }

  async #ensureBuiltin(name: string, options: EnsureOptions): Promise<RootImage> {
    return await ensureBuiltin(name, {
      folder: this.#folder,
      packagesDir: this.#packagesDir,
      find: (digest) => this.find(digest),
      known: this.#cache.aliases,
      build: (alias, make) => this.#build(alias, options, make),
    });
  }
}
