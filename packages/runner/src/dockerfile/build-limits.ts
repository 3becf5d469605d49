/** What one build of a Dockerfile may take. */
export interface BuildLimits {
  /** How many run at a time; 0 for none. */
  parallel: number;
  cpus: number;
  memMib: number;
  /** The disk of a build: base images, layers of earlier builds, the context, and what its steps write. */
  diskMib: number;
  timeMs: number;
  /** Processes of a build at a time. */
  processes: number;
  /** Most host disk that the layer caches of all projects take. */
  cacheMib: number;
}

/** More than a build of many parallel jobs has, and few enough for a guest. */
export const BUILD_PROCESSES_MAX = 4096;
/** Base images that one build may ask for. */
export const BASE_IMAGES_MAX = 64;
/** A Dockerfile in a context. */
export const DOCKERFILE_MAX_BYTES = 1024 * 1024;

/** `10 GiB` or `1500 MiB`. */
export function sizeText(mib: number): string {
  return mib % 1024 === 0 ? `${mib / 1024} GiB` : `${mib} MiB`;
}

/** `30 minutes` or `90 seconds`. */
export function timeText(ms: number): string {
  return ms % 60_000 === 0 ? `${ms / 60_000} minutes` : `${ms / 1000} seconds`;
}
