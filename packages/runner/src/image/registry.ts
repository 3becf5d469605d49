/**
 * What we ask of a registry, done by skopeo: which image a reference means, and its layers.
 *
 * What a registry says is believed only as far as digests go: every manifest is hashed here, blobs are hashed by skopeo
 * while they arrive and again (unpacked) against the configuration when they are merged.
 */
import { createHash } from 'node:crypto';
import { mkdir, open, readFile, unlink, utimes } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import path from 'node:path';
import type { ImageReference } from '@releap/contract';
import { ImageError } from './image-error.ts';
import type { ImageLimits } from './image-limits.ts';
import { checkConfig, checkManifest, parseManifest, pickPlatform } from './manifest.ts';
import type { CheckedConfig, ImageManifest } from './manifest.ts';
import { registryError } from './registry-error.ts';
import { runTool, toolEnv } from './image-tool.ts';

export interface RegistryCredential {
  username: string;
  password: string;
}

export type RegistryLimits = Pick<
  ImageLimits,
  'layers' | 'compressedBytes' | 'manifestBytes' | 'resolveMs' | 'pullMs'
>;

export interface RegistryCall {
  credential?: RegistryCredential | undefined;
  signal?: AbortSignal | undefined;
  /** An existing folder of our own: authentication and temporary files; the caller removes it. */
  workDir: string;
  limits: RegistryLimits;
}

export interface ResolvedImage {
  /** Digest of the manifest for our platform. */
  digest: string;
  /** Digest of what the reference itself names; differs when that is an index of several platforms. */
  topDigest: string;
  manifest: ImageManifest;
}

export interface PulledImage {
  config: CheckedConfig;
  /** The configuration as it was fetched. */
  rawConfig: Buffer;
  /** Bottom first. */
  layers: { path: string; digest: string; diffId: string }[];
}

/** An index may name another index, up to this depth. */
const INDEX_DEPTH = 3;

/**
 * Finds the manifest that a reference means on linux/amd64. Asks the registry once, twice for a multi-platform image.
 * @throws ImageError
 */
export async function resolveImage(reference: ImageReference, call: RegistryCall): Promise<ResolvedImage> {
  let wanted = reference.digest;
  let topDigest: string | undefined;
  for (let depth = 0; depth < INDEX_DEPTH; depth += 1) {
    const raw = await inspectRaw(reference, wanted, call);
    const digest = `sha256:${createHash('sha256').update(raw).digest('hex')}`;
    if (wanted !== undefined && digest !== wanted) {
      throw new ImageError(
        'lying-registry',
        `${reference.host} answered ${reference.canonical} with a manifest whose digest is ${digest}, not ${wanted}`,
      );
    }
    topDigest ??= digest;
    const parsed = parseManifest(raw, reference.canonical);
    if (parsed.kind === 'image') {
      checkManifest(parsed, reference.canonical, call.limits);
      return { digest, topDigest, manifest: parsed };
    }
    wanted = pickPlatform(parsed, reference.canonical);
  }
  throw new ImageError(
    'invalid-image',
    `${reference.canonical} is an index of indexes, more than ${INDEX_DEPTH} deep`,
  );
}

/**
 * Fetches the layers of a resolved image into `blobDir` (`sha256/<hex>`, shared by all images: what is there is not
 * fetched again) and reads its configuration.
 * @throws ImageError
 */
export async function pullImage(
  reference: ImageReference,
  resolved: ResolvedImage,
  blobDir: string,
  call: RegistryCall,
  onBlob?: (fetched: number, total: number) => void,
): Promise<PulledImage> {
  const layout = path.join(call.workDir, 'layout');
  await mkdir(layout, { recursive: true });
  // Garbage collection keeps recently used blobs.
  const now = new Date();
  for (const layer of resolved.manifest.layers) {
    await utimes(blobPath(blobDir, layer.digest), now, now).catch(() => undefined);
  }
  let blobs = 0;
  const total = resolved.manifest.layers.length;
  await withAuth(reference, call, async (auth) => {
    const result = await runTool(
      'skopeo',
      [
        '--tmpdir',
        call.workDir,
        'copy',
        '--dest-oci-accept-uncompressed-layers',
        '--remove-signatures',
        '--dest-shared-blob-dir',
        blobDir,
        ...(auth === undefined ? ['--src-no-creds'] : ['--src-authfile', AUTH_PATH]),
        ...(isLoopbackHost(reference.host) ? ['--src-tls-verify=false'] : []),
        `docker://${skopeoName(reference)}@${resolved.digest}`,
        `oci:${layout}:image`,
      ],
      {
        deadlineMs: call.limits.pullMs,
        signal: call.signal,
        env: toolEnv(call.workDir),
        // One blob cannot be larger than all layers may be; this also ends a body that never does.
        fileMax: call.limits.compressedBytes,
        extraFd: auth?.fd,
        onLine: (line) => {
          if (!line.startsWith('Copying blob')) return;
          blobs = Math.min(blobs + 1, total);
          onBlob?.(blobs, total);
        },
      },
    );
    if (result.code !== 0) throw refusal(reference, result.stderr, call.credential);
  });

  const rawConfig = await readConfig(layout, blobDir, reference, call.limits);
  const config = checkConfig(rawConfig, reference.canonical);
  const layers = resolved.manifest.layers.map((layer, index) => ({
    path: blobPath(blobDir, layer.digest),
    digest: layer.digest,
    diffId: config.diffIds[index] ?? '',
  }));
  if (config.diffIds.length !== layers.length) {
    throw new ImageError(
      'invalid-image',
      `${reference.canonical} has ${layers.length} layers, but its configuration names ${config.diffIds.length}`,
    );
  }
  return { config, rawConfig, layers };
}

/** Where a blob lies in a shared blob folder. `digest` must be a sha256 digest. */
export function blobPath(blobDir: string, digest: string): string {
  return path.join(blobDir, 'sha256', digest.slice('sha256:'.length));
}

/** Hosts that may be spoken to without TLS, as other container tools have it: this machine. */
export function isLoopbackHost(host: string): boolean {
  const name = host.startsWith('[') ? host.slice(0, host.indexOf(']') + 1) : host.replace(/:[0-9]+$/, '');
  return name === 'localhost' || name === '[::1]' || (isIPv4(name) && name.startsWith('127.'));
}

async function inspectRaw(
  reference: ImageReference,
  digest: string | undefined,
  call: RegistryCall,
): Promise<Buffer> {
  return await withAuth(reference, call, async (auth) => {
    const result = await runTool(
      'skopeo',
      [
        '--tmpdir',
        call.workDir,
        'inspect',
        '--raw',
        ...(auth === undefined ? ['--no-creds'] : ['--authfile', AUTH_PATH]),
        ...(isLoopbackHost(reference.host) ? ['--tls-verify=false'] : []),
        `docker://${skopeoName(reference)}${digest === undefined ? `:${reference.tag ?? 'latest'}` : `@${digest}`}`,
      ],
      {
        deadlineMs: call.limits.resolveMs,
        signal: call.signal,
        env: toolEnv(call.workDir),
        stdoutMax: call.limits.manifestBytes,
        extraFd: auth?.fd,
      },
    ).catch((error: unknown) => {
      if (error instanceof ImageError && error.code === 'timeout') {
        throw new ImageError(
          'timeout',
          `registry ${reference.host} did not answer within ${call.limits.resolveMs / 1000} s`,
        );
      }
      throw error;
    });
    if (result.code !== 0) throw refusal(reference, result.stderr, call.credential);
    return result.stdout;
  });
}

/** Where a tool finds the open file that it was started with (`extraFd`). */
const AUTH_PATH = '/proc/self/fd/3';

/**
 * Credentials travel in a file that has no name any more when they are written into it: whatever ends us, nothing of
 * them stays. Never as arguments, which every process on the machine may read.
 */
async function withAuth<T>(
  reference: ImageReference,
  call: RegistryCall,
  run: (auth: FileHandle | undefined) => Promise<T>,
): Promise<T> {
  const { credential } = call;
  if (credential === undefined) return await run(undefined);
  if (credential.username.includes(':')) {
    throw new ImageError('unauthorized', `the credential for ${reference.host} has a colon in its user name`);
  }
  const place = path.join(call.workDir, `auth-${crypto.randomUUID()}`);
  await using file = await open(place, 'wx+', 0o600);
  await unlink(place);
  await file.writeFile(
    JSON.stringify({ auths: { [skopeoHost(reference.host)]: { auth: basicAuth(credential) } } }),
  );
  return await run(file);
}

function basicAuth({ username, password }: RegistryCredential): string {
  return Buffer.from(`${username}:${password}`).toString('base64');
}

/** A registry may say back what it was sent, and a reason is shown and kept: the credential is taken out of it. */
function refusal(
  reference: ImageReference,
  stderr: string,
  credential: RegistryCredential | undefined,
): ImageError {
  if (credential === undefined) return registryError(reference, stderr, false);
  const { password } = credential;
  const quoted = JSON.stringify(password).slice(1, -1);
  const forms = [basicAuth(credential), password, quoted, encodeURIComponent(password)];
  const said = forms.reduce((text, form) => text.replaceAll(form, '***'), stderr);
  return registryError(reference, said, true);
}

/** skopeo knows Docker Hub by its short name alone. */
function skopeoHost(host: string): string {
  return host === 'index.docker.io' ? 'docker.io' : host;
}

function skopeoName(reference: ImageReference): string {
  return `${skopeoHost(reference.host)}/${reference.repository}`;
}

/** skopeo may have rewritten the manifest in the OCI form; the configuration is found through what it wrote. */
async function readConfig(
  layout: string,
  blobDir: string,
  reference: ImageReference,
  limits: RegistryLimits,
): Promise<Buffer> {
  const name = reference.canonical;
  const index = parseManifest(await readFile(path.join(layout, 'index.json')), name);
  const written = index.kind === 'index' ? index.manifests.at(0)?.digest : undefined;
  if (written === undefined) throw new ImageError('failed', `skopeo left no manifest for ${name}`);
  const manifest = parseManifest(await readFile(blobPath(blobDir, written)), name);
  if (manifest.kind !== 'image') throw new ImageError('failed', `skopeo left an index for ${name}`);
  const raw = await readFile(blobPath(blobDir, manifest.config.digest));
  if (raw.length > limits.manifestBytes) {
    throw new ImageError(
      'too-large',
      `the configuration of ${name} has ${raw.length} bytes, at most ${limits.manifestBytes} are allowed`,
    );
  }
  const digest = `sha256:${createHash('sha256').update(raw).digest('hex')}`;
  if (digest !== manifest.config.digest) {
    throw new ImageError(
      'lying-registry',
      `the configuration of ${name} has the digest ${digest}, not ${manifest.config.digest}`,
    );
  }
  return raw;
}
