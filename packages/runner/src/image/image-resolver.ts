import { createHash } from 'node:crypto';
import { ImageReferenceError, isImageDigest, parseImageReference } from '@releap/contract';
import type { ImageReference } from '@releap/contract';
import { ImageError, show, toImageError } from './image-error.ts';
import type { ImageFolder } from './image-folder.ts';
import type { ImageLimits } from './image-limits.ts';
import type { AddressPolicy } from './registry/address-policy.ts';
import type { RegistryCredential } from './registry/registry-client.ts';
import { resolveImage, type ResolvedImage } from './registry/resolve.ts';
import { SingleFlight } from './single-flight.ts';

const REMEMBERED_MAX = 1000;

/**
 * What references mean, resolved by their registries and cached for `resolutionTtlMs`. A caller with another
 * credential asks the registry again: one project's access is never another's.
 */
export class ImageResolver {
  readonly #folder: ImageFolder;
  readonly #limits: ImageLimits;
  readonly #policy: AddressPolicy;
  readonly #known = new Map<string, { resolved: ResolvedImage; freshUntil: number }>();
  readonly #flights = new SingleFlight<ResolvedImage>();

  constructor(folder: ImageFolder, limits: ImageLimits, policy: AddressPolicy) {
    this.#folder = folder;
    this.#limits = limits;
    this.#policy = policy;
  }

  /** What was found out lately, without asking. */
  known(reference: ImageReference, credential: RegistryCredential | undefined): ResolvedImage | undefined {
    const known = this.#known.get(keyOf(reference, credential));
    return known && known.freshUntil > performance.now() ? known.resolved : undefined;
  }

  /**
   * @param login gives what the registry takes for `credential`
   * @throws ImageError
   */
  async resolve(
    reference: ImageReference,
    credential: RegistryCredential | undefined,
    login: (signal: AbortSignal) => Promise<RegistryCredential | undefined>,
    signal: AbortSignal | undefined,
  ): Promise<ResolvedImage> {
    const known = this.known(reference, credential);
    if (known) return known;
    const key = keyOf(reference, credential);
    return await this.#flights.run(
      key,
      async (flightSignal) => {
        try {
          const resolved = await resolveImage(reference, {
            credential: await login(flightSignal),
            signal: flightSignal,
            policy: this.#policy,
            limits: this.#limits,
          });
          if (resolved.topDigest !== resolved.digest) {
            await using work = await this.#folder.shortWork(flightSignal);
            await this.#folder.writeAlias(work.path, resolved.topDigest, { digest: resolved.digest });
          }
          this.#remember(key, resolved);
          return resolved;
        } catch (error) {
          throw toImageError(error, `resolving ${reference.canonical}`);
        }
      },
      { signal },
    );
  }

  async close(): Promise<void> {
    await this.#flights.close();
  }

  #remember(key: string, resolved: ResolvedImage): void {
    this.#known.delete(key);
    this.#known.set(key, { resolved, freshUntil: performance.now() + this.#limits.resolutionTtlMs });
    const oldest = this.#known.size > REMEMBERED_MAX ? this.#known.keys().next().value : undefined;
    if (oldest !== undefined) this.#known.delete(oldest);
  }
}

/** @throws ImageError `bad-reference` */
export function parseReference(text: string): ImageReference {
  try {
    return parseImageReference(text);
  } catch (error) {
    if (!(error instanceof ImageReferenceError)) throw error;
    throw new ImageError('bad-reference', error.message, { cause: error });
  }
}

/** @throws ImageError `bad-reference` */
export function checkDigest(digest: string): string {
  if (isImageDigest(digest)) return digest;
  throw new ImageError(
    'bad-reference',
    `${show(digest)} is not an image digest; sha256: with 64 hex digits is`,
  );
}

/** Where an image comes from, whatever its tag: `host/path`. */
export function repositoryOf(reference: ImageReference): string {
  return `${reference.host}/${reference.repository}`;
}

function keyOf(reference: ImageReference, credential: RegistryCredential | undefined): string {
  if (credential === undefined) return reference.canonical;
  const who = JSON.stringify([credential.username, credential.password]);
  return `${reference.canonical} ${createHash('sha256').update(who).digest('hex')}`;
}
