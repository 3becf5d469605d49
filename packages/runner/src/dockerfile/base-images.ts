/** Base images of a build: fetched by the host with the project's credentials, and handed into the micro-VM. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { parseImageReference } from '@releap/contract';
import type { DockerfileRoot, ImageReference } from '@releap/contract';
import { BUILD_DISK } from '../image/builtin/builder.ts';
import { ImageError } from '../image/image-error.ts';
import type { FetchedImage, ImageStore } from '../image/image-store.ts';
import type { LayerSource } from '../image/oci-flatten.ts';
import { buildFailed, isOutOfDisk } from './build-error.ts';
import { BASE_IMAGES_MAX } from './build-limits.ts';
import type { BuildVm, CommandResult } from './build-vm.ts';

const LAYOUT = `${BUILD_DISK}/tmp/base`;
const OCI = 'application/vnd.oci.image';

export interface BaseImagesOptions {
  images: Pick<ImageStore, 'withLayers'>;
  vm: BuildVm;
  projectId: string;
  credentials: DockerfileRoot['credentials'];
  signal: AbortSignal;
  note: (text: string) => void;
}

/** The base images of one build. */
export class BaseImages {
  readonly #options: BaseImagesOptions;
  readonly #added = new Set<string>();
  readonly #layers = new Map<string, LayerSource>();
  readonly #contexts: string[] = [];

  constructor(options: BaseImagesOptions) {
    this.#options = options;
  }

  /** Arguments that make buildah find those that are named by digest. */
  get arguments(): string[] {
    return this.#contexts.flatMap((context) => ['--build-context', context]);
  }

  /** A layer of a base image, on the host: results of the build have the same. @param diffId of the unpacked archive */
  layer(diffId: string): LayerSource | undefined {
    return this.#layers.get(diffId);
  }

  /**
   * Has an image in the micro-VM under the name by which buildah asks for it.
   * @param name untrusted
   * @throws ImageError that names it
   */
  async add(name: string): Promise<void> {
    const reference = parseName(name);
    if (this.#added.has(name)) {
      throw buildFailed(
        `the base image ${name} is here, but buildah cannot use it: perhaps another platform is asked for`,
      );
    }
    if (this.#added.size >= BASE_IMAGES_MAX) {
      throw buildFailed(`the Dockerfile names more than ${BASE_IMAGES_MAX} base images`);
    }
    this.#added.add(name);
    const { images, credentials, projectId, signal, note } = this.#options;
    note(`fetching the base image ${name}`);
    const credential = credentials.find(({ host }) => host === reference.host);
    try {
      const use = async (image: FetchedImage): Promise<void> => {
        for (const layer of image.layers) this.#layers.set(layer.diffId, layer);
        const local = await this.#load(image);
        await this.#name(local, name, reference);
      };
      await images.withLayers(name, credential, signal, use, projectId);
    } catch (error) {
      if (error instanceof ImageError)
        throw new ImageError(error.code, `base image ${name}: ${error.message}`, { cause: error });
      throw error;
    }
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

  /** Names are of one build only: the next one asks the registry what they mean. */
  async #name(local: string, name: string, reference: ImageReference): Promise<void> {
    const { vm, signal } = this.#options;
    if (reference.digest !== undefined) {
      this.#contexts.push(`${name}=container-image://${local}`);
      return;
    }
    const { host, repository, tag = 'latest' } = reference;
    const full = `${host === 'index.docker.io' ? 'docker.io' : host}/${repository}:${tag}`;
    check(await vm.run(`echo '${full}' >> names && buildah tag ${local} '${full}'`, { signal }));
  }
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
