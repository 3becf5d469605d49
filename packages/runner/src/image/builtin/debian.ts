/** `debian`: Debian 12 with Python 3, git and curl. */
import path from 'node:path';
import { EMPTY_RUN_CONFIG } from './builtin-image.ts';
import type { BuiltinContext, BuiltinImage, MadeImage } from './builtin-image.ts';
import { composeLayer } from './compose-layer.ts';
import { debootstrap } from './mmdebstrap.ts';

const SUITE = 'bookworm';
const PACKAGES = ['ca-certificates', 'curl', 'git', 'python3'];
/** Raise it when what is made below changes. */
const RECIPE = 1;

export const debian: BuiltinImage = {
  name: 'debian',
  recipe: async () => await Promise.resolve(`debian-${RECIPE}:${SUITE}:${PACKAGES.join(',')}`),
  make,
};

async function make(context: BuiltinContext): Promise<MadeImage> {
  return {
    layers: [
      await debootstrap('debian', SUITE, PACKAGES, context),
      await composeLayer(path.join(context.workDir, 'settings.tar'), [
        { path: 'etc/hostname', content: 'sandbox\n' },
        { path: 'etc/hosts', content: '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' },
        { path: 'etc/resolv.conf', content: '' },
        // No services are started by packages that are installed in a sandbox: nothing there supervises them.
        { path: 'usr/sbin/policy-rc.d', content: '#!/bin/sh\nexit 101\n', mode: 0o755 },
      ]),
    ],
    run: {
      ...EMPTY_RUN_CONFIG,
      cmd: ['/bin/bash'],
      env: { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' },
    },
  };
}
