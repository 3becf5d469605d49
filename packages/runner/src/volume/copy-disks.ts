import type { VolumePaths } from './volume-paths.ts';

/** The file systems of the copies. Every call is idempotent. */
export interface CopyDisks {
  /** Mounts the image; creates it, with an empty `data`, if there is none. @throws DiskFullError and others */
  mount(paths: VolumePaths, sizeGb: number): Promise<void>;
  isMounted(paths: VolumePaths): Promise<boolean>;
  /** @throws when it is in use */
  unmount(paths: VolumePaths): Promise<void>;
}
