/**
 * `dockerfile-builder`: what the micro-VMs that build Dockerfiles boot, Debian 13 with buildah. Of that suite on every host:
 * the buildah of Debian 12 knows no heredocs.
 */
import path from 'node:path';
import { EMPTY_RUN_CONFIG } from './builtin-image.ts';
import type { BuiltinContext, BuiltinImage, MadeImage } from './builtin-image.ts';
import { composeLayer } from './compose-layer.ts';
import { debootstrap } from './mmdebstrap.ts';

export const BUILDER_IMAGE = 'dockerfile-builder';

const SUITE = 'trixie';
/** crun runs the steps. buildah refuses to start without netavark, also where it sets up no network. */
const PACKAGES = ['buildah', 'ca-certificates', 'crun', 'git', 'netavark'];
/** Raise it when what is made below changes. */
const RECIPE = 2;

/** Where the disk of the project's layer cache is mounted in the micro-VM. */
export const BUILD_DISK = '/var/lib/docker';

const STORAGE_CONF = `[storage]
driver = "overlay"
runroot = "/run/containers/storage"
graphroot = "${BUILD_DISK}/storage"
`;

/** Base images come from the host, and never from a registry: buildah only looks for their full names. */
const REGISTRIES_CONF = `unqualified-search-registries = ["docker.io"]
short-name-mode = "permissive"
`;

export const builder: BuiltinImage = {
  name: BUILDER_IMAGE,
  recipe: async () => await Promise.resolve(`${BUILDER_IMAGE}-${RECIPE}:${SUITE}:${PACKAGES.join(',')}`),
  make,
};

async function make(context: BuiltinContext): Promise<MadeImage> {
  return {
    layers: [
      await debootstrap(BUILDER_IMAGE, SUITE, PACKAGES, context),
      await composeLayer(path.join(context.workDir, 'settings.tar'), [
        { path: 'etc/hostname', content: 'build\n' },
        { path: 'etc/hosts', content: '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' },
        { path: 'etc/resolv.conf', content: '' },
        { path: 'etc/containers/storage.conf', content: STORAGE_CONF },
        { path: 'etc/containers/registries.conf', content: REGISTRIES_CONF },
        {
          path: 'etc/containers/policy.json',
          content: '{"default":[{"type":"insecureAcceptAnything"}]}\n',
        },
      ]),
    ],
    run: {
      ...EMPTY_RUN_CONFIG,
      env: {
        PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
        HOME: '/root',
        LANG: 'C.UTF-8',
        TMPDIR: `${BUILD_DISK}/tmp`,
      },
    },
  };
}
