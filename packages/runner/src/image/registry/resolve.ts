/**
 * What a reference means: the manifest for our platform, and its configuration. Registries are believed only as far as
 * digests go, so everything is hashed here. Both are small; layers are fetched by `fetch-process.ts`.
 */
import { createHash } from 'node:crypto';
import type { ImageReference } from '@releap/contract';
import { ImageError } from '../image-error.ts';
import type { ImageLimits } from '../image-limits.ts';
import { checkConfig, checkManifest, parseManifest, pickPlatform } from '../manifest.ts';
import type { CheckedConfig, ImageManifest } from '../manifest.ts';
import type { AddressPolicy } from './address-policy.ts';
import { RegistryClient } from './registry-client.ts';
import type { RegistryCredential, RegistryTarget } from './registry-client.ts';

export interface RegistryCall {
  credential?: RegistryCredential | undefined;
  signal: AbortSignal;
  policy: AddressPolicy;
  limits: Pick<ImageLimits, 'layers' | 'compressedBytes' | 'manifestBytes' | 'resolveMs' | 'stallMs'>;
}

export interface ResolvedImage {
  /** Digest of the manifest for our platform. */
  digest: string;
  /** Digest of what the reference itself names; differs when that is an index of several platforms. */
  topDigest: string;
  manifest: ImageManifest;
}

export interface ImageConfiguration extends CheckedConfig {
  /** As the registry has it. */
  raw: Buffer;
}

/** An index may name another index, up to this depth. */
const INDEX_DEPTH = 3;

export function targetOf(reference: ImageReference): RegistryTarget {
  return { host: reference.host, repository: reference.repository, name: reference.canonical };
}

/** Finds the image that a reference means on linux/amd64. @throws ImageError */
export async function resolveImage(reference: ImageReference, call: RegistryCall): Promise<ResolvedImage> {
  return await ask(reference, call, (client) => findManifest(client, reference, call.limits));
}

/** Reads the configuration of a resolved image. @throws ImageError */
export async function readConfig(
  reference: ImageReference,
  { manifest }: ResolvedImage,
  call: RegistryCall,
): Promise<ImageConfiguration> {
  return await ask(reference, call, (client) =>
    findConfig(client, targetOf(reference), manifest, call.limits),
  );
}

async function ask<T>(
  reference: ImageReference,
  { limits, policy, credential, signal: cancelled }: RegistryCall,
  question: (client: RegistryClient) => Promise<T>,
): Promise<T> {
  const deadline = AbortSignal.timeout(limits.resolveMs);
  const target = targetOf(reference);
  await using client = new RegistryClient({
    target,
    credential,
    policy,
    signal: AbortSignal.any([cancelled, deadline]),
    stallMs: Math.min(limits.stallMs, limits.resolveMs),
  });
  try {
    return await question(client);
  } catch (error) {
    if (cancelled.aborted) throw new ImageError('aborted', `resolving ${target.name} was cancelled`);
    if (deadline.aborted || (error instanceof ImageError && error.code === 'timeout')) {
      throw new ImageError(
        'timeout',
        `registry ${target.host} did not answer within ${limits.resolveMs / 1000} s`,
      );
    }
    throw error;
  }
}

async function findManifest(
  client: RegistryClient,
  reference: ImageReference,
  limits: RegistryCall['limits'],
): Promise<ResolvedImage> {
  const { canonical, host } = reference;
  let wanted = reference.digest;
  let topDigest: string | undefined;
  for (let depth = 0; depth < INDEX_DEPTH; depth += 1) {
    const raw = await client.manifest(wanted ?? reference.tag ?? 'latest', limits.manifestBytes);
    const digest = sha256(raw);
    if (wanted !== undefined && digest !== wanted) {
      throw new ImageError(
        'lying-registry',
        `${host} answered ${canonical} with a manifest whose digest is ${digest}, not ${wanted}`,
      );
    }
    topDigest ??= digest;
    const parsed = parseManifest(raw, canonical);
    if (parsed.kind === 'image') {
      checkManifest(parsed, canonical, limits);
      return { digest, topDigest, manifest: parsed };
    }
    wanted = pickPlatform(parsed, canonical);
  }
  throw new ImageError('invalid-image', `${canonical} is an index of indexes, more than ${INDEX_DEPTH} deep`);
}

async function findConfig(
  client: RegistryClient,
  { name, host }: RegistryTarget,
  manifest: ImageManifest,
  limits: RegistryCall['limits'],
): Promise<ImageConfiguration> {
  const raw = await client.smallBlob(manifest.config.digest, limits.manifestBytes);
  const digest = sha256(raw);
  if (digest !== manifest.config.digest) {
    throw new ImageError(
      'lying-registry',
      `registry ${host} sent a configuration for ${name} that does not match its digest: ${digest}, not ${manifest.config.digest}`,
    );
  }
  const config = checkConfig(raw, name);
  if (config.diffIds.length !== manifest.layers.length) {
    throw new ImageError(
      'invalid-image',
      `${name} has ${manifest.layers.length} layers, but its configuration names ${config.diffIds.length}`,
    );
  }
  return { ...config, raw };
}

function sha256(data: Buffer): string {
  return `sha256:${createHash('sha256').update(data).digest('hex')}`;
}
