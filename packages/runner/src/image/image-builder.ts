/** The slow part: from a resolved reference, or a built-in image's recipe, to a published root image. */
import { createHash } from 'node:crypto';
import { rm, statfs } from 'node:fs/promises';
import type { ImageReference } from '@releap/contract';
import type { BuiltinImage, MadeImage } from './builtin/builtin-image.ts';
import { ImageError } from './image-error.ts';
import type { ImageFolder, StoredImage } from './image-folder.ts';
import type { ImageLimits } from './image-limits.ts';
import { repositoryOf } from './image-resolver.ts';
import { makeRootImage } from './make-root-image.ts';
import { blobPath, pullImage } from './registry.ts';
import type { RegistryCredential, ResolvedImage } from './registry.ts';

export interface ImageProgress {
  /** In this order, each in one run at most; `make` only of images that are made here, `resolve` and `pull` only of others. */
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
}

/** Fetches, merges and publishes a registry's image. @throws ImageError; nothing is published then. */
export async function buildFromRegistry(
  context: BuildContext,
  reference: ImageReference,
  resolved: ResolvedImage,
  credential: RegistryCredential | undefined,
): Promise<void> {
  const { folder, limits, work, signal, report } = context;
  await checkSpace(folder, resolved);
  const message = `fetching ${reference.canonical}`;
  report({ phase: 'pull', message, done: 0, total: resolved.manifest.layers.length });
  const pulled = await pullImage(
    reference,
    resolved,
    folder.blobs,
    { credential, signal, workDir: work, limits },
    (done, total) => report({ phase: 'pull', message, done, total }),
  );
  try {
    await makeAndPublish(
      context,
      resolved.digest,
      { layers: pulled.layers, run: pulled.config.run },
      { repository: repositoryOf(reference), anonymous: credential === undefined },
    );
  } catch (error) {
    if (!(error instanceof ImageError)) throw error;
    if (error.code === 'lying-registry' || error.code === 'invalid-image') {
      // Should a blob have been damaged on our own disk, the next try fetches it again.
      for (const layer of pulled.layers) await rm(blobPath(folder.blobs, layer.digest), { force: true });
    }
    throw new ImageError(error.code, `${reference.canonical}: ${error.message}`, { cause: error });
  }
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
  const { folder, limits, work, signal, report } = context;
  const { dir, root } = await folder.imageIn(work);
  const messages = { unpack: 'unpacking the layers', write: 'writing the root image' };
  report({ phase: 'unpack', message: messages.unpack, done: 0, total: content.layers.length });
  const { sizeBytes, entries } = await makeRootImage(
    { layers: content.layers, workDir: work, target: root, limits },
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
async function checkSpace(folder: ImageFolder, resolved: ResolvedImage): Promise<void> {
  const needed = resolved.manifest.layers.reduce((sum, layer) => sum + layer.size, 0);
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
