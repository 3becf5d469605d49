/** Root images that are built from Dockerfiles: which are here, and how a finished build becomes one. */
import { createHash, randomUUID } from 'node:crypto';
import type { DockerfileRoot } from '@releap/contract';
import type { Semaphore } from '../budget/semaphore.ts';
import type { MadeImage } from './builtin/builtin-image.ts';
import type { BuildContext, ImageProgress } from './image-builder.ts';
import { makeAndPublish } from './image-builder.ts';
import { ImageError, toImageError } from './image-error.ts';
import type { ImageFolder, RootImage } from './image-folder.ts';
import type { ImageJails } from './image-jails.ts';
import type { ImageLimits } from './image-limits.ts';
import type { SingleFlight } from './single-flight.ts';

/** A build under way: what the builder may use, and whom it tells. */
export interface DockerfileBuild {
  /** An empty folder of this build; removed afterwards. */
  workDir: string;
  signal: AbortSignal;
  /** What the build prints. */
  onOutput: (chunk: Buffer) => void;
  /** Digest of the root image that an earlier build of this project made of the same result, if it is here. */
  known: (imageId: string) => Promise<string | undefined>;
}

/** The result of a build: layers in `workDir` or the image cache, or the digest of an image that is here. */
export interface BuiltImage {
  digest: string;
  /** Names the result in the project's layer cache. */
  imageId: string;
  content?: MadeImage;
}

/** Builds a Dockerfile. @throws ImageError whose message is fit for the user */
export type BuildDockerfile = (root: DockerfileRoot, build: DockerfileBuild) => Promise<BuiltImage>;

/** Raise it when other steps prepare an image for Docker. */
const DOCKER_RECIPE = 1;

export interface DockerfileImagesOptions {
  build: BuildDockerfile;
  folder: ImageFolder;
  limits: ImageLimits;
  jails: ImageJails;
  /** How many images may be made at the same time. A build waits for it only with its result. */
  builders: Semaphore;
  flights: SingleFlight<RootImage, ImageProgress>;
  find: (alias: string) => Promise<RootImage | undefined>;
  setAlias: (work: string, alias: string, digest: string) => Promise<void>;
  onBuilt: () => void;
}

export interface DockerfileOptions {
  signal?: AbortSignal | undefined;
  onProgress?: ((progress: ImageProgress) => void) | undefined;
  onOutput?: ((chunk: Buffer) => void) | undefined;
  /** Builds it also where its image is here: unchanged steps come from the layer cache. */
  rebuild?: boolean | undefined;
}

export class DockerfileImages {
  readonly #options: DockerfileImagesOptions;

  constructor(options: DockerfileImagesOptions) {
    this.#options = options;
  }

  /** @throws ImageError whose message is fit for the user */
  async ensure(root: DockerfileRoot, options: DockerfileOptions): Promise<RootImage> {
    const { find, flights } = this.#options;
    const alias = dockerfileAlias(root);
    const { rebuild = false, onOutput = () => undefined } = options;
    const ready = rebuild ? undefined : await find(alias);
    if (ready) return ready;
    // Each job has a log of its own, and so a build of its own.
    const key = rebuild ? `${alias}-${randomUUID()}` : alias;
    return await flights.run(
      key,
      async (signal, report) => {
        try {
          return await this.#build(root, alias, { signal, report, onOutput });
        } catch (error) {
          throw toImageError(error, 'building the Dockerfile');
        }
      },
      options,
    );
  }

  async #build(
    root: DockerfileRoot,
    alias: string,
    {
      signal,
      report,
      onOutput,
    }: Pick<BuildContext, 'signal' | 'report'> & { onOutput: DockerfileBuild['onOutput'] },
  ): Promise<RootImage> {
    const { build, folder, limits, jails, builders, find, setAlias, onBuilt } = this.#options;
    await using work = await folder.shortWork(signal);
    report({ phase: 'make', message: 'building the Dockerfile' });
    const known = async (imageId: string): Promise<string | undefined> =>
      (await find(resultAlias(root, imageId)))?.digest;
    const built = await build(root, { workDir: work.path, signal, onOutput, known });
    const { digest, content } = built;
    if (content !== undefined && (await folder.read(digest)) === undefined) {
      const turn = async (): Promise<Disposable> => await builders.acquire(signal);
      const context = { folder, limits, jails, work: work.path, signal, report, turn };
      const origin = { repository: `dockerfile/${root.project_id}`, anonymous: false };
      await builders.run(async () => await makeAndPublish(context, digest, content, origin), signal);
    }
    for (const name of [alias, resultAlias(root, built.imageId)]) await setAlias(work.path, name, digest);
    const image = await find(alias);
    if (!image) throw new ImageError('failed', `the image ${digest} vanished right after it was built`);
    onBuilt();
    return image;
  }
}

/** Names the image of a Dockerfile: the same project, Dockerfile and context have the same. */
export function dockerfileAlias({
  project_id: project,
  dockerfile,
  context,
  docker,
}: DockerfileRoot): string {
  return `dockerfile-${hashOf([project, dockerfile, context?.digest, docker && DOCKER_RECIPE])}`;
}

/** A micro-VM says what its result is, so it can only name results of its own project. */
function resultAlias({ project_id: project }: DockerfileRoot, imageId: string): string {
  return `built-${hashOf([project, imageId])}`;
}

function hashOf(parts: unknown[]): string {
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex');
}
