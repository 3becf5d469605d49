/**
 * Root images by digest: fetched and made once, kept, shared by all processes that use the same cache folder.
 * The guarantees about keys, locks, publishing and crashes are in `docs/images.md`.
 */
import { stat } from 'node:fs/promises';
import { createHmac, randomBytes } from 'node:crypto';
import type { ImageReference, RootSource } from '@releap/contract';
import type { Logger } from 'pino';
import { BUILTINS, BUILTIN_IMAGES } from './builtin/index.ts';
import { dockerfileAlias, DockerfileImages } from './dockerfile-images.ts';
import type { BuildDockerfile, DockerfileOptions } from './dockerfile-images.ts';
import { buildBuiltin, buildFromRegistry, fetchLayersOf } from './image-builder.ts';
import type { BuildContext, ImageProgress, PullContext, RegistryAccess } from './image-builder.ts';
import { ImageError, show, toImageError } from './image-error.ts';
import { ImageFolder } from './image-folder.ts';
import type { RootImage, StoredImage } from './image-folder.ts';
import { collectGarbage } from './image-garbage.ts';
import { DEFAULT_IMAGE_LIMITS } from './image-limits.ts';
import type { ImageLimits } from './image-limits.ts';
import { ImageWorkshops } from './image-workshops.ts';
import { ImageResolver, checkDigest, parseReference, repositoryOf } from './image-resolver.ts';
import { Semaphore } from '../budget/semaphore.ts';
import type { LayerSource } from './oci-flatten.ts';
import type { LayerScope } from './layer-store.ts';
import { PullQueue, type PullOwner } from './pull-queue.ts';
import { AddressPolicy } from './registry/address-policy.ts';
import type { RegistryCredential } from './registry/registry-client.ts';
import { RegistryLogin, type StoredCredential } from './registry/registry-login.ts';
import { placeImage } from './place-image.ts';
import { SingleFlight } from './single-flight.ts';

export { ImageError } from './image-error.ts';
export type { ImageProgress } from './image-builder.ts';
export type { ImageConfig } from './image-config.ts';
export type { RootImage } from './image-folder.ts';

export interface ImageStoreOptions {
  /** The cache folder; everything of ours lies in `images/` below it. */
  cacheDir: string;
  log: Logger;
  /** Where set-up left Debian packages for built-in images. */
  packagesDir?: string | undefined;
  limits?: Partial<ImageLimits>;
  /** Absent: Dockerfiles are refused. */
  buildDockerfile?: BuildDockerfile | undefined;
  /** Fetches an image that another host built. Absent: only images of this host are found by their digest. */
  fetchStored?: ((digest: string, signal: AbortSignal | undefined) => Promise<void>) | undefined;
  /** Hosts and networks that pulls may connect to besides public addresses; see `AddressPolicy`. */
  privateHosts?: readonly string[] | undefined;
  /** Instead of Amazon's endpoints for tokens of its registries. */
  ecrEndpoint?: string | undefined;
}

export interface EnsureOptions extends Pick<DockerfileOptions, 'onOutput' | 'rebuild'> {
  /** Ends this caller's waiting. The work itself continues while another caller waits for it. */
  signal?: AbortSignal | undefined;
  onProgress?: ((progress: ImageProgress) => void) | undefined;
}

/** While held, the image is not tidied away. */
export interface ImageLease extends Disposable {
  release(): void;
}

/** An image of a registry: its configuration and its layers, bottom first. */
export interface FetchedImage {
  /** Of the manifest for our platform. */
  digest: string;
  rawConfig: Buffer;
  layers: (LayerSource & { size: number; mediaType: string })[];
}

/** What the cache holds, and the limits that it is kept to. */
export interface ImageStats {
  images: { count: number; bytes: number; mostBytes: number };
  layers: { count: number; bytes: number; mostBytes: number };
  pulls: { running: number; waiting: number };
}

type PullCredential = NonNullable<Extract<RootSource, { type: 'registry' }>['credential']>;

interface PullAccess {
  owner: PullOwner;
  login: (signal: AbortSignal) => Promise<RegistryCredential | undefined>;
  /** @param share given back when the registry is not needed any more */
  of: (signal: AbortSignal, share: Disposable) => Promise<RegistryAccess>;
}

/** Without a project, layers are shared by who has the same credential, as long as this process runs. */
const SCOPE_KEY = randomBytes(32);
function privateScope(host: string, { username, password }: PullCredential, projectId?: string): LayerScope {
  if (projectId !== undefined) return `project:${projectId}`;
  const hash = createHmac('sha256', SCOPE_KEY).update(JSON.stringify([host, username, password]));
  return `credential:${hash.digest('hex')}`;
}

const NO_SHARE: Disposable = { [Symbol.dispose]: () => undefined };

/** How often images in use are marked as such for other processes; shorter than what they take for unused. */
const LEASE_TOUCH_MS = 5 * 60_000;

export class ImageStore {
  readonly #log: Logger;
  readonly #limits: ImageLimits;
  readonly #folder: ImageFolder;
  readonly #packagesDir: string | undefined;
  /** Images seen whole on disk; each use still finds out whether it is there. */
  readonly #known = new Map<string, { stored: StoredImage; image: RootImage }>();
  readonly #resolver: ImageResolver;
  /** From what an index or a built-in's name is called to an image's digest. */
  readonly #aliases = new Map<string, string>();
  readonly #leases = new Map<string, number>();
  readonly #building = new SingleFlight<RootImage, ImageProgress>();
  readonly #makers: Semaphore;
  readonly #pulls: PullQueue;
  readonly #workshops: ImageWorkshops;
  readonly #policy: AddressPolicy;
  readonly #logins: RegistryLogin;
  readonly #dockerfiles: DockerfileImages | undefined;
  readonly #fetchStored: ImageStoreOptions['fetchStored'];
  readonly #touching: NodeJS.Timeout;
  #prepared: Promise<void> | undefined;
  #ready = false;
  #closed = false;

  constructor(options: ImageStoreOptions) {
    this.#log = options.log;
    this.#limits = { ...DEFAULT_IMAGE_LIMITS, ...options.limits };
    this.#folder = new ImageFolder(options.cacheDir);
    this.#policy = new AddressPolicy(options.privateHosts ?? []);
    this.#logins = new RegistryLogin(options.ecrEndpoint);
    this.#resolver = new ImageResolver(this.#folder, this.#limits, this.#policy);
    this.#packagesDir = options.packagesDir;
    this.#fetchStored = options.fetchStored;
    this.#makers = new Semaphore(this.#limits.parallelMakes);
    this.#pulls = new PullQueue(this.#limits.pulls);
    this.#workshops = new ImageWorkshops(this.#folder, this.#limits);
    const { buildDockerfile: build } = options;
    this.#dockerfiles =
      build &&
      new DockerfileImages({
        build,
        folder: this.#folder,
        limits: this.#limits,
        builders: this.#makers,
        flights: this.#building,
        find: (alias) => this.#findAlias(alias),
        setAlias: async (work, alias, digest) => {
          await this.#folder.writeAlias(work, alias, { digest });
          this.#aliases.set(alias, digest);
        },
        onBuilt: () => this.#tidy(),
      });
    this.#touching = setInterval(() => void this.#touchLeased(), LEASE_TOUCH_MS).unref();
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
    clearInterval(this.#touching);
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
    const cached = await this.#cached(source, reference);
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
    // By repository too: who names an image of another's digest waits for his own registry alone.
    const key = `${digest} ${repositoryOf(reference)}`;
    const enter = (signal: AbortSignal): Promise<Disposable> => this.#pulls.enter(access.owner, signal);
    const make = async (context: PullContext, share: Disposable): Promise<string> => {
      if ((await this.find(digest)) !== undefined) return digest;
      await buildFromRegistry(context, pinned, resolved, await access.of(context.signal, share));
      return digest;
    };
    return await this.#build(key, options, make, enter);
  }

  /** How a pull asks its registry, and which layers it need not fetch. */
  #access(
    reference: ImageReference,
    credential: PullCredential | undefined,
    projectId: string | undefined,
  ): PullAccess {
    const { host } = reference;
    const login: PullAccess['login'] = async (signal) =>
      credential && (await this.registryLogin({ host, ...credential }, signal));
    const scope = credential === undefined ? 'public' : privateScope(host, credential, projectId);
    return {
      owner: { project: projectId ?? '', host },
      login,
      of: async (signal, share) => ({
        credential: await login(signal),
        policy: this.#policy,
        scopes: ['public', scope],
        scope,
        fetched: () => share[Symbol.dispose](),
      }),
    };
  }

  /** What a registry takes for a project's credential. @throws ImageError */
  async registryLogin(credential: StoredCredential, signal?: AbortSignal): Promise<RegistryCredential> {
    return await this.#logins.of(credential, signal);
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
    const [images, layers] = await Promise.all([this.#folder.list(), this.#folder.layers.list()]);
    const sum = (all: readonly { sizeBytes: number }[]): number =>
      all.reduce((total, { sizeBytes }) => total + sizeBytes, 0);
    return {
      images: { count: images.length, bytes: sum(images), mostBytes: this.#limits.cacheBytes },
      layers: { count: layers.length, bytes: sum(layers), mostBytes: this.#limits.layerBytes },
      pulls: { running: this.#pulls.running, waiting: this.#pulls.waiting },
    };
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
      using share = await this.#pulls.enter(access.owner, signal);
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

  /** Like `ensure`, with a lease that no tidying can come before. */
  async acquire(source: RootSource, options: EnsureOptions = {}): Promise<ImageLease & { image: RootImage }> {
    const image = await this.ensure(source, options);
    return { ...this.lease(image.digest), image };
  }

  /** Whether `ensure` would answer at once, without a registry or a build. */
  async has(source: RootSource): Promise<boolean> {
    if (!this.#ready) await this.start();
    if (source.type === 'registry')
      return (await this.#cached(source, parseReference(source.ref))) !== undefined;
    if (source.type === 'stored') return (await this.find(checkDigest(source.digest))) !== undefined;
    const alias = source.type === 'builtin' ? `builtin-${source.name}` : dockerfileAlias(source);
    return (await this.#findAlias(alias)) !== undefined;
  }

  /** The image of a digest, if it is here. */
  async find(digest: string): Promise<RootImage | undefined> {
    if (!(await this.#folder.touch(digest))) {
      this.#known.delete(digest);
      return undefined;
    }
    const known = this.#known.get(digest);
    if (known) return known.image;
    const found = await this.#folder.read(digest);
    if (!found) {
      this.#log.warn({ digest }, 'a cached image is incomplete; it is removed and made again');
      await this.#folder.discard(digest);
      return undefined;
    }
    this.#known.set(digest, found);
    return found.image;
  }

  /** The files of an image, to copy it elsewhere, with their sizes. Undefined when it is not here. */
  async files(
    digest: string,
  ): Promise<Record<'root' | 'config', { path: string; bytes: number }> | undefined> {
    if ((await this.find(digest)) === undefined) return undefined;
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

  /** Keeps the image from being tidied away until released. Several may be held. */
  lease(digest: string): ImageLease {
    this.#leases.set(digest, (this.#leases.get(digest) ?? 0) + 1);
    let held = true;
    const release = (): void => {
      if (!held) return;
      held = false;
      const left = (this.#leases.get(digest) ?? 1) - 1;
      if (left > 0) this.#leases.set(digest, left);
      else this.#leases.delete(digest);
    };
    return { release, [Symbol.dispose]: release };
  }

  /** Takes an image out of the cache. False when it is in use or not there. */
  async remove(digest: string): Promise<boolean> {
    if (this.#leases.has(digest)) return false;
    this.#known.delete(digest);
    return await this.#folder.discard(digest);
  }

  /** Tidies up to the stated bounds; runs by itself after each build. Returns the bytes freed. */
  async gc(): Promise<number> {
    const freed = await collectGarbage(this.#folder, this.#limits, (digest) => this.#leases.has(digest));
    if (freed.images + freed.layers > 0) this.#log.info(freed, 'tidied up the image cache');
    return freed.bytes;
  }

  #tidy(): void {
    this.gc().catch((error: unknown) => this.#log.warn({ err: error }, 'cannot tidy up the image cache'));
  }

  /** A cached image that needs no request to a registry: the path of nearly every create. */
  async #cached(
    source: Extract<RootSource, { type: 'registry' }>,
    reference: ImageReference,
  ): Promise<RootImage | undefined> {
    // A digest given beside the reference was resolved by us earlier for the same project.
    if (source.digest !== undefined) return await this.#findPinned(checkDigest(source.digest));
    const known = this.#resolver.known(reference, source.credential);
    if (known) return await this.find(known.digest);
    if (reference.digest === undefined) return undefined;
    // A digest that a user wrote does not prove that this user may have the image; that it is public does.
    const image = await this.#findPinned(reference.digest);
    const origin = image && this.#known.get(image.digest)?.stored.origin;
    return origin?.anonymous && origin.repository === repositoryOf(reference) ? image : undefined;
  }

  async #findPinned(digest: string): Promise<RootImage | undefined> {
    return (await this.find(digest)) ?? (await this.#findAlias(digest));
  }

  async #findAlias(name: string): Promise<RootImage | undefined> {
    const digest = this.#aliases.get(name) ?? (await this.#folder.readAlias(name))?.digest;
    if (digest === undefined) return undefined;
    this.#aliases.set(name, digest);
    return await this.find(digest);
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
    const turn = (): Promise<Disposable> => this.#makers.enter(signal);
    return {
      folder: this.#folder,
      limits: this.#limits,
      work,
      signal,
      report,
      turn,
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
    const builtin = BUILTINS.get(name);
    if (!builtin) {
      throw new ImageError(
        'not-found',
        `there is no built-in image ${show(name)}; there are ${BUILTIN_IMAGES.join(', ')}`,
      );
    }
    const alias = `builtin-${name}`;
    // Made once a process is young: only then can its recipe have changed.
    const known = this.#aliases.get(alias);
    if (known !== undefined) {
      const image = await this.find(known);
      if (image) return image;
    }
    const recipe = await builtin.recipe(this.#packagesDir);
    const current = async (): Promise<RootImage | undefined> => {
      const stored = await this.#folder.readAlias(alias);
      const image = stored?.recipe === recipe ? await this.find(stored.digest) : undefined;
      if (image) this.#aliases.set(alias, image.digest);
      return image;
    };
    const ready = await current();
    if (ready) return ready;
    return await this.#build(alias, options, async (context) => {
      using _turn = await context.turn();
      const made = await current();
      if (made) return made.digest;
      const digest = await buildBuiltin(context, builtin, this.#packagesDir);
      await this.#folder.writeAlias(context.work, alias, { digest, recipe });
      this.#aliases.set(alias, digest);
      return digest;
    });
  }

  async #touchLeased(): Promise<void> {
    for (const digest of this.#leases.keys()) {
      await this.#folder.touch(digest).catch((error: unknown) => {
        this.#log.warn({ err: error, digest }, 'cannot mark an image as in use');
      });
    }
  }
}
