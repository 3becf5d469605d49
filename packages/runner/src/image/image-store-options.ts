/** What callers of the image store give, and get. */
import type { Logger } from 'pino';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import type { BuildDockerfile, DockerfileOptions } from './dockerfile-images.ts';
import type { ImageProgress } from './image-builder.ts';
import type { ImageLimits } from './image-limits.ts';
import type { LayerSource } from './unpack-layer.ts';

export interface ImageStoreOptions {
  /** The cache folder; everything of ours lies in `images/` below it. */
  cacheDir: string;
  log: Logger;
  /** Where the processes of each pull get a control group, of pulls alone. Absent: they have none. */
  groups?: Pick<CgroupTree, 'create' | 'destroy'> | undefined;
  /** Where set-up left Debian packages for built-in images. */
  packagesDir?: string | undefined;
  limits?: Partial<ImageLimits>;
  /** Absent: Dockerfiles are refused. */
  buildDockerfile?: BuildDockerfile | undefined;
  /** Fetches an image that another host built. Absent: only images of this host are found by their digest. */
  fetchStored?: ((digest: string, signal: AbortSignal | undefined) => Promise<void>) | undefined;
  /** Hosts and networks that pulls may connect to besides public addresses; see `AddressPolicy`. */
  privateHosts?: readonly string[] | undefined;
  /** Instead of Amazon's endpoints for tokens of its registries. */
  ecrEndpoint?: string | undefined;
}

export interface EnsureOptions extends Pick<DockerfileOptions, 'onOutput' | 'rebuild'> {
  /** Ends this caller's waiting. The work itself continues while another caller waits for it. */
  signal?: AbortSignal | undefined;
  onProgress?: ((progress: ImageProgress) => void) | undefined;
}

/** An image of a registry: its configuration and its layers, bottom first. */
export interface FetchedImage {
  /** Of the manifest for our platform. */
  digest: string;
  rawConfig: Buffer;
  layers: (LayerSource & { size: number; mediaType: string })[];
}

/** What the cache holds, and the limits that it is kept to. */
export interface ImageStats {
  images: { count: number; bytes: number; mostBytes: number };
  layers: { count: number; bytes: number; mostBytes: number };
  pulls: { running: number; waiting: number };
}
