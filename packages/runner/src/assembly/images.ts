/** The images of a runner: those that are pulled, those that are built, and those that other hosts have built. */
import { join } from 'node:path';
import { ArtifactFetcher } from '../artifact/artifact-fetcher.ts';
import type { StoreClient } from '../artifact/store-client.ts';
import { CgroupTree } from '../cgroup/cgroup-tree.ts';
import { EmptyExt4Store } from '../disk/empty-ext4.ts';
import { BuildCaches } from '../dockerfile/build-caches.ts';
import { contextsOf } from '../dockerfile/build-context.ts';
import { BUILD_PROCESSES_MAX } from '../dockerfile/build-limits.ts';
import { DockerfileBuilds } from '../dockerfile/dockerfile-builds.ts';
import { imageLimits } from '../image/image-jails.ts';
import { ImageStore } from '../image/image-store.ts';
import type { Admission, Machines } from '../machine/index.ts';
import type { Network } from '../network/network.ts';
import type { Quarantine } from '../quarantine/quarantine.ts';
import type { RunnerOptions } from '../runner-options.ts';

export interface ImageParts {
  options: RunnerOptions;
  /** Of the runner's state. */
  folder: string;
  machines: Machines;
  network: Network;
  admission: Admission;
  store: StoreClient;
  snapshotQuarantine: Quarantine;
}

/** @returns also the control groups of the processes that fetch and make images */
export async function startImages(parts: ImageParts): Promise<{
  images: ImageStore;
  groups: CgroupTree;
  caches: BuildCaches;
  fetcher: ArtifactFetcher;
}> {
  const { options, folder, machines, network, admission, store, snapshotQuarantine } = parts;
  const { cacheDir, buildDir, builds, log } = options;
  await using opened = new AsyncDisposableStack();
  // Apart from those of the VMs, all of which a reconciliation ends that no record names.
  const groups = await CgroupTree.open(join(options.home, 'images'), imageLimits());
  opened.defer(() => groups.abandon());
  for (const left of await groups.list()) await groups.destroy(left);
  const images = new ImageStore({
    cacheDir,
    groups,
    log: log.child({ part: 'image' }),
    packagesDir: join(buildDir, 'packages'),
    ...(builds.parallel > 0 && {
      buildDockerfile: (root, build) => dockerfiles.build(root, build),
    }),
    fetchStored: (digest, signal) => fetcher.ensureImage(digest, signal),
    privateHosts: options.images.privateHosts,
    ecrEndpoint: options.images.ecrEndpoint,
    limits: {
      cacheBytes: options.images.cacheMib * 2 ** 20,
      layerBytes: options.images.layerMib * 2 ** 20,
    },
  });
  await images.start();
  const caches = new BuildCaches({
    folder: join(folder, 'build-caches'),
    emptyDisks: new EmptyExt4Store(cacheDir),
    diskMib: builds.diskMib,
    maxMib: builds.cacheMib,
    deletedProjects: (projects, signal) => store.deletedProjects(projects, signal),
    log: log.child({ part: 'build' }),
  });
  const dockerfiles: DockerfileBuilds = new DockerfileBuilds({
    machines,
    network,
    admission,
    images,
    caches,
    openBlob: contextsOf(store),
    limits: { ...builds, processes: BUILD_PROCESSES_MAX },
    log: log.child({ part: 'build' }),
  });
  const fetcher = new ArtifactFetcher({
    client: store,
    snapshots: machines.snapshots,
    snapshotQuarantine,
    images,
    log: log.child({ part: 'artifact' }),
  });
  opened.move();
  return { images, groups, caches, fetcher };
}
