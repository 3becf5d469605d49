/**
 * Manifests, indexes and configurations of container images: OCI image specification v1 and Docker's schema 2, which it
 * grew from. Everything here is untrusted; only what is listed below is taken, after its shape was checked.
 */
import { isImageDigest } from '@releap/contract';
import { ARCHITECTURE } from '../host/architecture.ts';
import { ImageError, show } from './image-error.ts';
import { DOCKER_LABEL, type ImageConfig } from './image-config.ts';
import type { ImageLimits } from './image-limits.ts';

export interface Descriptor {
  mediaType: string;
  digest: string;
  size: number;
}

export interface ImageManifest {
  kind: 'image';
  config: Descriptor;
  /** Bottom first. */
  layers: Descriptor[];
}

export interface ImageIndex {
  kind: 'index';
  manifests: (Descriptor & { platform?: { os: string; architecture: string; variant: string } })[];
}

/** What we take from an image's configuration. */
export interface CheckedConfig {
  run: ImageConfig;
  diffIds: string[];
}

/** What our guests are. */
export const PLATFORM = { os: 'linux', architecture: ARCHITECTURE.name } as const;

const OCI = 'application/vnd.oci.image.';
const DOCKER = 'application/vnd.docker.';
const INDEX_TYPES = new Set([`${OCI}index.v1+json`, `${DOCKER}distribution.manifest.list.v2+json`]);
const IMAGE_TYPES = new Set([`${OCI}manifest.v1+json`, `${DOCKER}distribution.manifest.v2+json`]);
const CONFIG_TYPES = new Set([`${OCI}config.v1+json`, `${DOCKER}container.image.v1+json`]);
const LAYER_TYPES = new Set([
  `${OCI}layer.v1.tar`,
  `${OCI}layer.v1.tar+gzip`,
  `${OCI}layer.v1.tar+zstd`,
  `${DOCKER}image.rootfs.diff.tar`,
  `${DOCKER}image.rootfs.diff.tar.gzip`,
  `${DOCKER}image.rootfs.diff.tar.zstd`,
]);
const DESCRIPTORS_MAX = 1000;
/** What a process's arguments and environment may come to together; Linux allows 2 MiB by default. */
const RUN_CONFIG_MAX_BYTES = 1024 * 1024;

/** Reads either kind of manifest. `name` is for messages. @throws ImageError `unsupported`, `invalid-image`. */
export function parseManifest(raw: Buffer, name: string): ImageManifest | ImageIndex {
  const json = parseObject(raw, `the manifest of ${name}`);
  const stated = typeof json['mediaType'] === 'string' ? json['mediaType'] : '';
  if (json['schemaVersion'] === 1) {
    throw new ImageError(
      'unsupported',
      `${name} is in Docker's schema 1 form, which is no longer used; push it again with a present tool`,
    );
  }
  if (json['schemaVersion'] !== 2) {
    throw new ImageError(
      'unsupported',
      `${name} has a manifest of schema version ${show(String(json['schemaVersion']))}; 2 is known`,
    );
  }
  if (INDEX_TYPES.has(stated) || (stated === '' && Array.isArray(json['manifests']))) {
    const manifests = list(json['manifests'], `the index of ${name}`).map((item) => {
      const entry = object(item, `the index of ${name}`);
      const platform =
        entry['platform'] === undefined ? undefined : object(entry['platform'], `the index of ${name}`);
      return {
        ...descriptor(item, `the index of ${name}`),
        ...(platform === undefined
          ? {}
          : {
              platform: {
                os: text(platform['os']),
                architecture: text(platform['architecture']),
                variant: text(platform['variant']),
              },
            }),
      };
    });
    return { kind: 'index', manifests };
  }
  if (!IMAGE_TYPES.has(stated) && !(stated === '' && json['layers'] !== undefined)) {
    throw new ImageError(
      'unsupported',
      `${name} has a manifest of type ${show(stated)}, which is no container image`,
    );
  }
  return {
    kind: 'image',
    config: descriptor(json['config'], `the configuration of ${name}`),
    layers: list(json['layers'], `the layers of ${name}`).map((item) =>
      descriptor(item, `the layers of ${name}`),
    ),
  };
}

/** The digest of our platform's manifest in an index. @throws ImageError `no-platform` that lists what there is. */
export function pickPlatform(index: ImageIndex, name: string): string {
  const fits = index.manifests.find(
    ({ platform }) => platform?.os === PLATFORM.os && platform.architecture === PLATFORM.architecture,
  );
  // An index of one, made by a tool that does not say for what: the configuration will tell.
  const only =
    index.manifests.length === 1 && index.manifests[0]?.platform === undefined
      ? index.manifests[0]
      : undefined;
  const chosen = fits ?? only;
  if (chosen) return chosen.digest;
  const offered = index.manifests
    .filter(({ platform }) => platform && platform.os !== 'unknown')
    .map(({ platform }) =>
      [platform?.os, platform?.architecture, platform?.variant].filter(Boolean).join('/'),
    );
  throw new ImageError(
    'no-platform',
    `${name} has no image for ${PLATFORM.os}/${PLATFORM.architecture}; it has ${offered.length === 0 ? 'none at all' : show(offered.join(', '))}`,
  );
}

/** Refuses early what cannot become a root image. @throws ImageError `unsupported`, `too-large`. */
export function checkManifest(
  manifest: ImageManifest,
  name: string,
  limits: Pick<ImageLimits, 'layers' | 'compressedBytes' | 'manifestBytes'>,
): void {
  if (!CONFIG_TYPES.has(manifest.config.mediaType)) {
    throw new ImageError(
      'unsupported',
      `${name} is not a container image but an artifact of type ${show(manifest.config.mediaType)}`,
    );
  }
  if (manifest.config.size > limits.manifestBytes) {
    throw new ImageError(
      'too-large',
      `the configuration of ${name} has ${manifest.config.size} bytes, at most ${limits.manifestBytes} are allowed`,
    );
  }
  if (manifest.layers.length > limits.layers) {
    throw new ImageError(
      'too-large',
      `${name} has ${manifest.layers.length} layers, at most ${limits.layers} are allowed`,
    );
  }
  for (const layer of manifest.layers) {
    if (!LAYER_TYPES.has(layer.mediaType)) {
      throw new ImageError(
        'unsupported',
        `${name} has a layer of type ${show(layer.mediaType)}; tar archives, plain or packed with gzip or zstd, are known`,
      );
    }
  }
  const size = manifest.layers.reduce((sum, layer) => sum + layer.size, 0);
  if (size > limits.compressedBytes) {
    throw new ImageError(
      'too-large',
      `the layers of ${name} have ${size} bytes, at most ${limits.compressedBytes} are allowed`,
    );
  }
}

/** Reads an image configuration. @throws ImageError `invalid-image`, `no-platform`. */
export function checkConfig(raw: Buffer, name: string): CheckedConfig {
  const what = `the configuration of ${name}`;
  const json = parseObject(raw, what);
  const os = text(json['os']);
  const architecture = text(json['architecture']);
  // Very old images say nothing; they are what all images were then.
  if ((os !== '' && os !== PLATFORM.os) || (architecture !== '' && architecture !== PLATFORM.architecture)) {
    throw new ImageError(
      'no-platform',
      `${name} is made for ${show(`${os}/${architecture}`)}; ${PLATFORM.os}/${PLATFORM.architecture} is what runs here`,
    );
  }
  const rootfs = object(json['rootfs'], what);
  const diffIds = list(rootfs['diff_ids'], what).map((id) => {
    if (typeof id !== 'string' || !isImageDigest(id))
      throw new ImageError('invalid-image', `${what} has a malformed diff_id`);
    return id;
  });
  const config = json['config'] === undefined || json['config'] === null ? {} : object(json['config'], what);
  const run: ImageConfig = {
    entrypoint: strings(config['Entrypoint'], `${what} (Entrypoint)`),
    cmd: strings(config['Cmd'], `${what} (Cmd)`),
    env: environment(strings(config['Env'], `${what} (Env)`)),
    user: plain(config['User'], `${what} (User)`),
    workingDir: plain(config['WorkingDir'], `${what} (WorkingDir)`),
    exposedPorts: ports(config['ExposedPorts']),
    stopSignal: plain(config['StopSignal'], `${what} (StopSignal)`),
    ...(hasLabel(config['Labels'], DOCKER_LABEL) && { docker: true }),
  };
  if (JSON.stringify(run).length > RUN_CONFIG_MAX_BYTES) {
    throw new ImageError('too-large', `${what} is larger than ${RUN_CONFIG_MAX_BYTES} bytes`);
  }
  return { run, diffIds };
}

function hasLabel(labels: unknown, name: string): boolean {
  return typeof labels === 'object' && labels !== null && Reflect.get(labels, name) === 'true';
}

/** `NAME=value` items; the last of a name wins, what is no such item is left out, as engines do. */
function environment(items: readonly string[]): Record<string, string> {
  const entries = new Map<string, string>();
  for (const item of items) {
    const equals = item.indexOf('=');
    if (equals > 0) entries.set(item.slice(0, equals), item.slice(equals + 1));
  }
  return Object.fromEntries(entries);
}

function ports(value: unknown): ImageConfig['exposedPorts'] {
  if (typeof value !== 'object' || value === null) return [];
  const result: ImageConfig['exposedPorts'] = [];
  for (const key of Object.keys(value).slice(0, DESCRIPTORS_MAX)) {
    const [, port, proto] = /^([0-9]{1,5})(?:\/(tcp|udp))?$/.exec(key) ?? [];
    if (port !== undefined && Number(port) >= 1 && Number(port) <= 65_535) {
      result.push({ port: Number(port), proto: proto === 'udp' ? 'udp' : 'tcp' });
    }
  }
  return result;
}

function parseObject(raw: Buffer, what: string): Record<string, unknown> {
  let json: unknown;
  try {
    json = JSON.parse(raw.toString('utf8'));
  } catch (error) {
    throw new ImageError('invalid-image', `${what} is not JSON`, { cause: error });
  }
  return object(json, what);
}

function object(value: unknown, what: string): Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new ImageError('invalid-image', `${what} is malformed: an object is missing`);
  }
  return value as Record<string, unknown>;
}

function list(value: unknown, what: string): unknown[] {
  if (value === null || value === undefined) return [];
  if (!Array.isArray(value)) throw new ImageError('invalid-image', `${what} is malformed: a list is missing`);
  if (value.length > DESCRIPTORS_MAX)
    throw new ImageError(
      'too-large',
      `${what} has ${value.length} items, at most ${DESCRIPTORS_MAX} are allowed`,
    );
  return value;
}

function descriptor(value: unknown, what: string): Descriptor {
  const { mediaType, digest, size } = object(value, what);
  if (typeof digest !== 'string' || !isImageDigest(digest)) {
    throw new ImageError(
      'invalid-image',
      `${what} is malformed: ${show(String(digest))} is not a sha256 digest`,
    );
  }
  if (typeof size !== 'number' || !Number.isSafeInteger(size) || size < 0) {
    throw new ImageError('invalid-image', `${what} is malformed: ${show(String(size))} is not a size`);
  }
  return { mediaType: text(mediaType), digest, size };
}

function strings(value: unknown, what: string): string[] {
  return list(value, what).map((item) => plain(item, what));
}

/** Text without zero bytes, which no argument or variable can carry. */
function plain(value: unknown, what: string): string {
  if (value === undefined || value === null) return '';
  if (typeof value !== 'string' || value.includes('\0'))
    throw new ImageError('invalid-image', `${what} is malformed`);
  return value;
}

function text(value: unknown): string {
  return typeof value === 'string' ? value : '';
}
