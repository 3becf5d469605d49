/** The builder of Dockerfiles with the limits of tests. */
import path from 'node:path';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { EmptyExt4Store } from '../../src/disk/empty-ext4.ts';
import { BuildCaches } from '../../src/dockerfile/build-caches.ts';
import type { BuildLimits } from '../../src/dockerfile/build-limits.ts';
import { DockerfileBuilds, type DockerfileBuildsOptions } from '../../src/dockerfile/dockerfile-builds.ts';
import { BUILDER_IMAGE } from '../../src/image/builtin/builder.ts';
import { ImageStore } from '../../src/image/image-store.ts';
import { Admission } from '../../src/machine/index.ts';
import { BUILD_DIR, log } from './machines.ts';

const LIMITS: BuildLimits = {
  parallel: 1,
  cpus: 2,
  memMib: 1024,
  diskMib: 2048,
  timeMs: 10 * 60_000,
  cacheMib: 4096,
  processes: 4096,
};

export const packagesDir = path.join(BUILD_DIR, 'packages');

/** Has the image that build VMs boot. Needs the machine's network. */
export async function ensureBuilderImage(): Promise<void> {
  const images = new ImageStore({ cacheDir: TEST_CACHE, packagesDir, log });
  try {
    await images.ensure({ type: 'builtin', name: BUILDER_IMAGE });
  } finally {
    await images.close();
  }
}

export function cachesFolder(home: string): string {
  return path.join(home, 'build-caches');
}

export function openDockerfileBuilds(
  home: string,
  options: Pick<DockerfileBuildsOptions, 'machines' | 'network' | 'images' | 'openBlob'>,
  changed: Partial<BuildLimits> = {},
): DockerfileBuilds {
  const limits = { ...LIMITS, ...changed };
  const caches = new BuildCaches({
    folder: cachesFolder(home),
    emptyDisks: new EmptyExt4Store(TEST_CACHE),
    diskMib: limits.diskMib,
    maxMib: limits.cacheMib,
    deletedProjects: () => Promise.resolve([]),
    log,
  });
  caches.close();
  return new DockerfileBuilds({ ...options, admission: new Admission(), caches, limits, log });
}
