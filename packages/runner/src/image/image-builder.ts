/** The slow part: from a resolved reference, or a built-in image's recipe, to a published root image. */
import { createHash } from 'node:crypto';
import { stat, statfs } from 'node:fs/promises';
import path from 'node:path';
import type { ImageReference } from '@releap/contract';
import type { BuiltinImage, MadeImage } from './builtin/builtin-image.ts';
import { ImageError, show } from './image-error.ts';
import type { ImageFolder, StoredImage } from './image-folder.ts';
import type { ImageLimits } from './image-limits.ts';
import { repositoryOf } from './image-resolver.ts';
import { linkStack, planStack, STACK_FILES } from './image-stack.ts';
import { putIn } from './jail-folder.ts';
import type { LayerScope } from './layer-store.ts';
import type { ImageJails } from './image-jails.ts';
import type { ImageWorkshops, Workshop } from './image-workshops.ts';
import {
  announce,
  indexOf,
  isArchiveName,
  makeInJail,
  makeRootImage,
  takeOutRoot,
} from './make-root-image.ts';
import type { MadeRootImage } from './make-root-image.ts';
import type { LayerSource } from './unpack-layer.ts';
import type { CheckedConfig, Descriptor } from './manifest.ts';
import type { AddressPolicy } from './registry/address-policy.ts';
import { fetchLayers } from './registry/fetch-layers.ts';
import type { RegistryCredential } from './registry/registry-client.ts';
import { type ImageConfiguration, readConfig, type ResolvedImage, targetOf } from './registry/resolve.ts';

export interface ImageProgress {
  /** In this order; `make` only of images that are made here, `resolve` and `pull` only of others. */
  phase: 'resolve' | 'wait' | 'pull' | 'make' | 'unpack' | 'write' | 'publish';
  /** For people. */
  message: string;
  done?: number;
  total?: number;
}

export interface BuildContext {
  folder: ImageFolder;
  limits: ImageLimits;
  /** A work folder for this build alone. */
  work: string;
  signal: AbortSignal;
  report: (progress: ImageProgress) => void;
  /** One of the few places for what keeps a processor busy; disposed of afterwards. */
  turn: () => Promise<Disposable>;
  jails: ImageJails;
}

/** A build that fetches. */
export interface PullContext extends BuildContext {
  workshops: ImageWorkshops;
}

/** With what a registry is asked, and who may share the layers that it gives. */
export interface RegistryAccess {
  credential: RegistryCredential | undefined;
  policy: AddressPolicy;
  /** Layers of these need not be fetched. */
  scopes: readonly LayerScope[];
  /** Whose layers these become. */
  scope: LayerScope;
  /** The registry is not needed any more. */
  fetched: () => void;
}

/** Fetches, merges and publishes a registry's image. @throws ImageError; nothing is published then. */
export async function buildFromRegistry(
  context: PullContext,
  reference: ImageReference,
  resolved: ResolvedImage,
  access: RegistryAccess,
): Promise<void> {
  const { folder, work, signal, report } = context;
  await using workshop = await context.workshops.take(signal);
  const pulled = await pullLayers(context, workshop, reference, resolved, access, true);
  const { config, layers, made } = pulled;
  const { dir, root } = await folder.imageIn(work);
  signal.throwIfAborted();
  report({ phase: 'publish', message: `${made.entries} files` });
  const image: StoredImage = {
    version: 1,
    digest: resolved.digest,
    ...(await placeRoot(context, workshop.folder, dir, root, pulled.archives)),
    layerCount: layers.length,
    config: config.run,
    origin: { repository: repositoryOf(reference), anonymous: access.credential === undefined },
  };
  await folder.publishForBoot(dir, image);
}

/** Takes over what the maker has written: a root image, or the head of one, to which the layers belong. */
async function placeRoot(
  { limits }: PullContext,
  jail: string,
  dir: string,
  root: string,
  archives: readonly string[],
): Promise<Pick<StoredImage, 'sizeBytes' | 'stack'>> {
  // The maker has the same sizes, and is not asked.
  const sizes = await Promise.all(archives.map(async (archive) => (await stat(archive)).size));
  const plan = planStack(sizes, limits);
  if (plan === undefined) return { sizeBytes: await takeOutRoot(jail, root, false) };
  const headBytes = await takeOutRoot(jail, path.join(dir, STACK_FILES.head), false);
  return await linkStack(dir, headBytes, plan, archives);
}

/** Fetches and unpacks the layers of a registry's image, without making a root image. @throws ImageError */
export async function fetchLayersOf(
  context: PullContext,
  reference: ImageReference,
  resolved: ResolvedImage,
  access: RegistryAccess,
): Promise<{ rawConfig: Buffer; layers: (LayerSource & { size: number; mediaType: string })[] }> {
  await using workshop = await context.workshops.take(context.signal);
  const { config, layers } = await pullLayers(context, workshop, reference, resolved, access, false);
  const described = layers.map(async ({ digest, diffId }) => {
    const archive = await context.folder.layers.find(digest, diffId, access.scopes);
    if (archive === undefined)
      throw new ImageError('failed', `layer ${digest} vanished right after it was fetched`);
    const { size } = await stat(archive);
    return { path: archive, digest: diffId, diffId, verified: true, size, mediaType: TAR };
  });
  return { rawConfig: config.raw, layers: await Promise.all(described) };
}

const TAR = 'application/vnd.oci.image.layer.v1.tar';

interface PulledLayers {
  config: ImageConfiguration;
  layers: WantedLayer[];
  /** Paths of the unpacked layers, bottom first. */
  archives: string[];
  made: MadeRootImage;
}

/** Fetches and unpacks what is not here yet, and keeps it for others. @param merge also makes the root image, in the workshop */
async function pullLayers(
  context: PullContext,
  { folder: jail, fetcher, maker }: Workshop,
  reference: ImageReference,
  resolved: ResolvedImage,
  access: RegistryAccess,
  merge: boolean,
): Promise<PulledLayers> {
  const { folder, limits, work, signal, report, turn, workshops } = context;
  const { credential, policy } = access;
  const config = await readConfig(reference, resolved, { credential, policy, signal, limits });
  const layers = await wantedLayers(folder, resolved, config, access.scopes);
  await checkSpace(folder, layers);
  const indexed = new Set<number>();
  for (const [index, { stored }] of layers.entries()) {
    if (stored === undefined) continue;
    await putIn(jail, fileOf(index), stored);
    const table = merge ? folder.layers.indexOf(stored) : undefined;
    if (table === undefined) continue;
    const isThere = await putIn(jail, indexOf(fileOf(index)), table).then(
      () => true,
      () => false,
    );
    // It may be removed meanwhile, and is not needed.
    if (isThere) indexed.add(index);
  }
  const missing = [...layers.entries()].filter(([, { stored }]) => stored === undefined);
  const message = `fetching ${reference.canonical}`;
  const messages = { unpack: 'unpacking the layers', write: 'writing the root image' };
  const stop = new AbortController();
  const either = AbortSignal.any([signal, stop.signal]);
  let fetched = 0;
  if (missing.length > 0) report({ phase: 'pull', message, done: 0, total: missing.length });

  const fetching = async (): Promise<void> => {
    if (missing.length > 0) {
      const blobs = missing.map(([index, { digest, size }]) => ({ digest, size, file: fileOf(index) }));
      const job = { target: targetOf(reference), credential, privateHosts: policy.allowed, blobs, limits };
      await fetchLayers(fetcher, job, {
        signal: either,
        onBlob: (index) => {
          fetched += 1;
          report({ phase: 'pull', message, done: fetched, total: missing.length });
          announce(maker, missing[index]?.[0] ?? -1);
        },
      });
    }
    access.fetched();
    // Unpacking and merging remain, beside which the next pull's processes start.
    workshops.warm();
  };
  const inJailLayers = layers.map(({ digest, diffId, stored }, index) => {
    const isStored = stored !== undefined;
    const ready = { ready: isStored, verified: isStored, indexed: indexed.has(index) };
    return { file: fileOf(index), digest, diffId, ...ready };
  });
  const making = makeInJail(
    maker,
    { layers: inJailLayers, limits, merge, stackable: true },
    {
      signal: either,
      turn,
      onProgress: ({ phase, done, total }) => {
        // While layers arrive, how many have arrived says more.
        if (phase === 'write' || fetched === missing.length)
          report({ phase, message: messages[phase], done, total });
      },
    },
  );
  try {
    const made = await firstFailure([fetching(), making], stop);
    // Not as the jail has them: its names are the processes'.
    const archives = layers.map(({ stored }) => stored ?? '');
    for (const [index, layer] of missing) {
      const archive = made.archives[index];
      if (archive === undefined || !isArchiveName(archive))
        throw new ImageError('failed', `the image maker named an archive ${show(String(archive))}`);
      const files = { archive, index: indexOf(fileOf(index)) };
      archives[index] = await folder.layers.add(layer, access.scope, jail, files, work);
    }
    return { config, layers, archives, made };
  } catch (error) {
    if (!(error instanceof ImageError) || error.message.includes(reference.canonical)) throw error;
    throw new ImageError(error.code, `${reference.canonical}: ${error.message}`, { cause: error });
  }
}

const fileOf = (index: number): string => `layer-${index}`;

/** Waits for both; the first one to fail stops the other, and is the reason. */
async function firstFailure<T>(
  [fetching, making]: readonly [Promise<void>, Promise<T>],
  stop: AbortController,
): Promise<T> {
  let reason: unknown;
  const onFailure = (error: unknown): void => {
    if (reason === undefined) reason = error;
    stop.abort();
  };
  fetching.catch(onFailure);
  making.catch(onFailure);
  const [, made] = await Promise.allSettled([fetching, making]);
  if (reason !== undefined) throw reason;
  if (made.status === 'rejected') throw made.reason;
  return made.value;
}

interface WantedLayer extends Descriptor {
  diffId: string;
  /** Its archive, when it is here and the caller may have it. */
  stored: string | undefined;
}

async function wantedLayers(
  folder: ImageFolder,
  { manifest }: ResolvedImage,
  config: CheckedConfig,
  scopes: readonly LayerScope[],
): Promise<WantedLayer[]> {
  return await Promise.all(
    manifest.layers.map(async (layer, index) => {
      const diffId = config.diffIds[index] ?? '';
      return { ...layer, diffId, stored: await folder.layers.find(layer.digest, diffId, scopes) };
    }),
  );
}

/** Makes and publishes a built-in image. @returns its digest. @throws ImageError; nothing is published then. */
export async function buildBuiltin(
  context: BuildContext,
  builtin: BuiltinImage,
  packagesDir: string | undefined,
): Promise<string> {
  const { folder, work, signal, report } = context;
  const content = await builtin.make({
    workDir: work,
    packagesDir,
    signal,
    report: (message, done, total) =>
      report({ phase: 'make', message: `${builtin.name}: ${message}`, done, total }),
  });
  const digest = digestOf(content);
  if ((await folder.read(digest)) === undefined) {
    await makeAndPublish(context, digest, content, {
      repository: `builtin/${builtin.name}`,
      anonymous: true,
    });
  }
  return digest;
}

/** Merges and publishes layers that are here, as the image of `digest`. @throws ImageError; nothing is published then. */
export async function makeAndPublish(
  context: BuildContext,
  digest: string,
  content: MadeImage,
  origin: StoredImage['origin'],
): Promise<void> {
  const { folder, limits, work, signal, report, jails } = context;
  const { dir, root } = await folder.imageIn(work);
  const messages = { unpack: 'unpacking the layers', write: 'writing the root image' };
  report({ phase: 'unpack', message: messages.unpack, done: 0, total: content.layers.length });
  const { sizeBytes, entries } = await makeRootImage(
    { layers: content.layers, workDir: work, target: root, limits, jails },
    {
      signal,
      onProgress: ({ phase, done, total }) => report({ phase, message: messages[phase], done, total }),
    },
  );
  signal.throwIfAborted();
  report({ phase: 'publish', message: `${entries} files, ${sizeBytes} bytes` });
  await folder.publish(dir, {
    version: 1,
    digest,
    sizeBytes,
    layerCount: content.layers.length,
    config: content.run,
    origin,
  });
}

/** Says at once what would be found out after a long download. */
async function checkSpace(folder: ImageFolder, layers: readonly WantedLayer[]): Promise<void> {
  const needed = layers.reduce((sum, { size, stored }) => sum + (stored === undefined ? size : 0), 0);
  const { bavail, bsize } = await statfs(folder.dir);
  if (needed > bavail * bsize) {
    throw new ImageError(
      'no-space',
      `no space left on the image cache's disk: the layers have ${needed} bytes, ${bavail * bsize} are free`,
    );
  }
}

/** A built-in image's digest, from its content as a registry's would be: of the manifest that it would have. */
function digestOf(content: MadeImage): string {
  const manifest = JSON.stringify({
    layers: content.layers.map(({ diffId }) => diffId),
    config: content.run,
  });
  return `sha256:${createHash('sha256').update(manifest).digest('hex')}`;
}
