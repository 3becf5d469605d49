/** The builder of Dockerfiles with the limits of tests. */
import path from 'node:path';
import { newUuid } from '@releap/contract';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { EmptyExt4Store } from '../../src/disk/empty-ext4.ts';
import { BuildCaches } from '../../src/dockerfile/build-caches.ts';
import type { BuildLimits } from '../../src/dockerfile/build-limits.ts';
import { BuildVm } from '../../src/dockerfile/build-vm.ts';
import { DockerfileBuilds, type DockerfileBuildsOptions } from '../../src/dockerfile/dockerfile-builds.ts';
import { BUILDER_IMAGE } from '../../src/image/builtin/builder.ts';
import { ImageStore } from '../../src/image/image-store.ts';
import { Admission } from '../../src/machine/index.ts';
import { BUILD_DIR, log } from './machines.ts';

export const TEST_LIMITS: BuildLimits = {
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

function cachesFolder(home: string): string {
  return path.join(home, 'build-caches');
}

type Parts = Pick<DockerfileBuildsOptions, 'machines' | 'network' | 'images' | 'openBlob'>;

export function openDockerfileBuilds(
  home: string,
  parts: Parts,
  changed: Partial<BuildLimits> = {},
): DockerfileBuilds {
  const limits = { ...TEST_LIMITS, ...changed };
  return new DockerfileBuilds({
    ...parts,
    admission: new Admission(),
    caches: openCaches(home, limits),
    limits,
    log,
  });
}

/** A micro-VM as builds have it, with an empty layer cache, for builds that the test runs in it itself. */
export async function startBuildVm(
  home: string,
  { machines, network, images }: Omit<Parts, 'openBlob'>,
): Promise<{ vm: BuildVm } & AsyncDisposable> {
  await using started = new AsyncDisposableStack();
  const { signal } = new AbortController();
  const { path: disk } = started.use(await openCaches(home, TEST_LIMITS).open(newUuid(), signal));
  const { image } = started.use(await images.acquire({ type: 'builtin', name: BUILDER_IMAGE }, { signal }));
  const options = { machines, network, admission: new Admission(), image, disk, signal, log };
  const vm = started.use(await BuildVm.start({ ...options, limits: TEST_LIMITS }));
  const stack = started.move();
  return { vm, [Symbol.asyncDispose]: () => stack.disposeAsync() };
}

/** By folder and sizes: two of one folder would take each other's disks for those of an earlier process. */
const opened = new Map<string, BuildCaches>();

function openCaches(home: string, { diskMib, cacheMib }: BuildLimits): BuildCaches {
  const key = JSON.stringify([home, diskMib, cacheMib]);
  const known = opened.get(key);
  if (known !== undefined) return known;
  const caches = new BuildCaches({
    folder: cachesFolder(home),
    emptyDisks: new EmptyExt4Store(TEST_CACHE),
    diskMib,
    maxMib: cacheMib,
    deletedProjects: () => Promise.resolve([]),
    log,
  });
  caches.close();
  opened.set(key, caches);
  return caches;
}
