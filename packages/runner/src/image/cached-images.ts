/** The images in the cache folder, by digest and by alias. */
import type { ImageReference, RootSource } from '@releap/contract';
import type { Logger } from 'pino';
import type { ImageFolder, RootImage, StoredImage } from './image-folder.ts';
import { checkDigest, repositoryOf, type ImageResolver } from './image-resolver.ts';

export class CachedImages {
  readonly #folder: ImageFolder;
  readonly #log: Logger;
  /** Images seen whole on disk; each use still finds out whether it is there. */
  readonly #known = new Map<string, { stored: StoredImage; image: RootImage }>();
  /** From what an index or a built-in's name is called to an image's digest. */
  readonly aliases = new Map<string, string>();

  constructor(folder: ImageFolder, log: Logger) {
    this.#folder = folder;
    this.#log = log;
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

  /** @param digest of the image, or of an index that names it */
  async findPinned(digest: string): Promise<RootImage | undefined> {
    return (await this.find(digest)) ?? (await this.findAlias(digest));
  }

  /** The image that an index's digest, the name of a built-in, or the like, names; if it is here. */
  async findAlias(name: string): Promise<RootImage | undefined> {
    const digest = this.aliases.get(name) ?? (await this.#folder.readAlias(name))?.digest;
    if (digest === undefined) return undefined;
    this.aliases.set(name, digest);
    return await this.find(digest);
  }

  /** A cached image that needs no request to a registry: the path of nearly every create. */
  async ofRegistry(
    source: Extract<RootSource, { type: 'registry' }>,
    reference: ImageReference,
    resolver: Pick<ImageResolver, 'known'>,
  ): Promise<RootImage | undefined> {
    // A digest given beside the reference was resolved by us earlier for the same project.
    if (source.digest !== undefined) return await this.findPinned(checkDigest(source.digest));
    const known = resolver.known(reference, source.credential);
    if (known) return await this.find(known.digest);
    if (reference.digest === undefined) return undefined;
    // A digest that a user wrote does not prove that this user may have the image; that it is public does.
    const image = await this.findPinned(reference.digest);
    const origin = image && this.#known.get(image.digest)?.stored.origin;
    return origin?.anonymous && origin.repository === repositoryOf(reference) ? image : undefined;
  }

  /** Its files change: the next use reads them. */
  forget(digest: string): void {
    this.#known.delete(digest);
  }
}
