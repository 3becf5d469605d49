/** Base images of a build: fetched by the host with the project's credentials, and handed into the micro-VM. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import { parseImageReference } from '@releap/contract';
import type { DockerfileRoot, ImageReference } from '@releap/contract';
import { BUILD_DISK } from '../image/builtin/builder.ts';
import { ImageError } from '../image/image-error.ts';
import type { FetchedImage, ImageStore } from '../image/image-store.ts';
import type { LayerSource } from '../image/unpack-layer.ts';
import { buildFailed, isOutOfDisk } from './build-error.ts';
import { BASE_IMAGES_MAX } from './build-limits.ts';
import type { BuildVm, CommandResult } from './build-vm.ts';

const LAYOUT = `${BUILD_DISK}/tmp/base`;
/** Names that base images have in the cache, with their digests: a line each. */
const NAMES = `${BUILD_DISK}/names`;
const NAMES_MAX_BYTES = 64 * 1024;
const OCI = 'application/vnd.oci.image';

export interface BaseImagesOptions {
  images: Pick<ImageStore, 'withLayers'>;
  vm: BuildVm;
  projectId: string;
  access: BuildAccess;
  signal: AbortSignal;
  note: (text: string) => void;
}

/** The base images of one build. */
export class BaseImages {
  readonly #options: BaseImagesOptions;
  readonly #added = new Set<string>();
  readonly #layers = new Map<string, LayerSource>();
  readonly #contexts: string[] = [];
  readonly #used = new Map<string, string>();
  #hasTriggers = false;

  constructor(options: BaseImagesOptions) {
    this.#options = options;
  }

  /** Arguments that make buildah find those that are named by digest. */
  get arguments(): string[] {
    return this.#contexts.flatMap((context) => ['--build-context', context]);
  }

  /** Those that the build may have used, as the Dockerfile names them. */
  get used(): { name: string; digest: string }[] {
    return Array.from(this.#used, ([name, digest]) => ({ name, digest }));
  }

  /** One of them has instructions for images that are built from it. */
  get hasTriggers(): boolean {
    return this.#hasTriggers;
  }

  /** A layer of a base image, on the host: results of the build have the same. @param diffId of the unpacked archive */
  layer(diffId: string): LayerSource | undefined {
    return this.#layers.get(diffId);
  }

  /**
   * Of the base images that the last build of the project has named, those that the Dockerfile names as well become what the
   * registry has now. The others lose their names: buildah asks for them when it needs them.
   */
  async renew(dockerfile: string): Promise<void> {
    const { vm, signal } = this.#options;
    const chunks: Buffer[] = [];
    const stored = vm.guest.files.read(NAMES, { length: NAMES_MAX_BYTES, signal });
    // Absent in a new cache.
    await pipeline(stored, async (source) => {
      for await (const chunk of source) chunks.push(chunk as Buffer);
    }).catch(() => signal.throwIfAborted());
    const lines = Buffer.concat(chunks).toString('utf8').split('\n');
    await vm.run(`rm -f ${NAMES}`, { signal });
    const outdated: string[] = [];
    for (const [digest = '', name = ''] of lines.map((line) => line.split(' '))) {
      if (name === '') continue;
      const isCurrent = dockerfile.includes(name) && (await this.#fetch(name, digest).catch(() => false));
      signal.throwIfAborted();
      if (!isCurrent) outdated.push(`'${fullName(parseName(name))}'`);
    }
    if (outdated.length > 0) await vm.run(`buildah rmi ${outdated.join(' ')}`, { signal });
  }

  /**
   * Has an image in the micro-VM under the name by which buildah asks for it.
   * @param name untrusted
   * @throws ImageError that names it
   */
  async add(name: string): Promise<void> {
    parseName(name);
    if (this.#added.has(name)) {
      throw buildFailed(
        `the base image ${name} is here, but buildah cannot use it: perhaps another platform is asked for`,
      );
    }
    if (this.#added.size >= BASE_IMAGES_MAX) {
      throw buildFailed(`the Dockerfile names more than ${BASE_IMAGES_MAX} base images`);
    }
    this.#added.add(name);
    this.#options.note(`fetching the base image ${name}`);
    try {
      await this.#fetch(name);
    } catch (error) {
      if (!(error instanceof ImageError)) throw error;
      throw new ImageError(error.code, `base image ${name}: ${error.message}`, { cause: error });
    }
  }

  /** @param named digest of the image that has this name in the micro-VM. @returns true */
  async #fetch(name: string, named?: string): Promise<true> {
    const { images, projectId, signal } = this.#options;
    const reference = parseName(name);
    const credential = credentialOf(this.#options.access, name);
    const use = async (image: FetchedImage): Promise<void> => {
      for (const layer of image.layers) this.#layers.set(layer.diffId, layer);
      this.#used.set(name, image.digest);
      this.#hasTriggers ||= triggersOf(image.rawConfig);
      const local = await this.#load(image);
      await this.#name(local, name, reference, image.digest, image.digest === named);
    };
    await images.withLayers(name, credential, signal, use, projectId);
    return true;
  }

  /** Copies it into the layer cache, unless that has it. @returns its name there */
  async #load(image: FetchedImage): Promise<string> {
    const { vm, signal } = this.#options;
    const hex = image.digest.slice('sha256:'.length);
    const local = `localhost/releap/base:${hex}`;
    const mark = `${BUILD_DISK}/bases/${hex}`;
    if ((await vm.run(`test -e ${mark}`, { signal })).exitCode === 0) return local;
    await vm.run(`rm -rf ${LAYOUT}`, { signal });
    for (const { name, content } of layoutOf(image, local)) {
      const source = typeof content === 'string' ? createReadStream(content) : content;
      await vm.guest.files.write(`${LAYOUT}/${name}`, source, { signal }).catch((error: unknown) => {
        throw isOutOfDisk(String(error)) ? new Error('no space left on device', { cause: error }) : error;
      });
    }
    check(
      await vm.run(`buildah pull --quiet oci:${LAYOUT}:${local} && rm -rf ${LAYOUT} && touch ${mark}`, {
        signal,
      }),
    );
    return local;
  }

  async #name(
    local: string,
    name: string,
    reference: ImageReference,
    digest: string,
    isNamed: boolean,
  ): Promise<void> {
    const { vm, signal } = this.#options;
    if (reference.digest !== undefined) {
      this.#contexts.push(`${name}=container-image://${local}`);
      return;
    }
    const tag = isNamed ? '' : ` && buildah tag ${local} '${fullName(reference)}'`;
    check(await vm.run(`echo '${digest} ${name}' >> ${NAMES}${tag}`, { signal }));
  }
}

export type BuildAccess = Pick<DockerfileRoot, 'credentials' | 'no_credentials'>;

/** The project's credential for the registry of a base image. @throws ImageError when control cannot send it */
export function credentialOf(
  { credentials, no_credentials: unusable = [] }: BuildAccess,
  name: string,
): DockerfileRoot['credentials'][number] | undefined {
  const { host } = parseName(name);
  const failure = unusable.find((one) => one.host === host);
  if (failure) throw new ImageError('unauthorized', failure.reason);
  return credentials.find((credential) => credential.host === host);
}

/** Whether it has an `ONBUILD`. */
function triggersOf(rawConfig: Buffer): boolean {
  const { config } = JSON.parse(rawConfig.toString('utf8')) as { config?: { OnBuild?: unknown } };
  return Array.isArray(config?.OnBuild) && config.OnBuild.length > 0;
}

/** As buildah calls it. */
function fullName({ host, repository, tag = 'latest' }: ImageReference): string {
  return `${host === 'index.docker.io' ? 'docker.io' : host}/${repository}:${tag}`;
}

/** @param name untrusted; no reference has a character that ends a quotation in a shell */
function parseName(name: string): ImageReference {
  try {
    return parseImageReference(name);
  } catch (error) {
    throw buildFailed(`the Dockerfile names a base image that does not exist: ${(error as Error).message}`);
  }
}

function check({ exitCode, stdout, stderr }: CommandResult): void {
  if (exitCode === 0) return;
  const said = `${stdout}\n${stderr}`.trim().split('\n').at(-1) ?? '';
  throw new Error(`it cannot be loaded into the build's micro-VM: ${said}`);
}

/** The files of an OCI layout that holds the image alone; content is a path where it is large. */
function layoutOf(
  { rawConfig, layers }: FetchedImage,
  name: string,
): { name: string; content: Buffer | string }[] {
  const digestOf = (data: Buffer): string => `sha256:${createHash('sha256').update(data).digest('hex')}`;
  const blob = (digest: string): string => `blobs/${digest.replace(':', '/')}`;
  const configuration = withHistory(rawConfig, layers.length);
  const config = {
    mediaType: `${OCI}.config.v1+json`,
    digest: digestOf(configuration),
    size: configuration.length,
  };
  const manifest = Buffer.from(
    JSON.stringify({
      schemaVersion: 2,
      mediaType: `${OCI}.manifest.v1+json`,
      config,
      layers: layers.map(({ mediaType, digest, size }) => ({
        mediaType: ociLayerType(mediaType),
        digest,
        size,
      })),
    }),
  );
  const index = {
    schemaVersion: 2,
    manifests: [
      {
        mediaType: `${OCI}.manifest.v1+json`,
        digest: digestOf(manifest),
        size: manifest.length,
        annotations: { 'org.opencontainers.image.ref.name': name },
      },
    ],
  };
  return [
    { name: 'oci-layout', content: Buffer.from('{"imageLayoutVersion":"1.0.0"}') },
    { name: blob(config.digest), content: configuration },
    ...layers.map(({ path, digest }) => ({ name: blob(digest), content: path })),
    { name: blob(digestOf(manifest)), content: manifest },
    { name: 'index.json', content: Buffer.from(JSON.stringify(index)) },
  ];
}

/** Docker's layer types have the same content under other names. */
function ociLayerType(mediaType: string): string {
  const [, compression] = /[.+](gzip|zstd)$/.exec(mediaType) ?? [];
  return `${OCI}.layer.v1.tar${compression === undefined ? '' : `+${compression}`}`;
}

/** buildah finds cached layers by their history, which some tools leave out of their images. */
function withHistory(rawConfig: Buffer, layers: number): Buffer {
  const config = JSON.parse(rawConfig.toString('utf8')) as { history?: unknown };
  if (Array.isArray(config.history) && config.history.length > 0) return rawConfig;
  const history = Array.from({ length: layers }, () => ({ created_by: 'a layer of the base image' }));
  return Buffer.from(JSON.stringify({ ...config, history }));
}
