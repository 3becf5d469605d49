/** Prepares what a build has made for Docker: an image without an engine gets one, as further steps of the build. */
import { DOCKER_LABEL } from '../image/image-config.ts';
import { buildFailed } from './build-error.ts';

/** Name of the image without an engine, in the micro-VM. */
export const ENGINELESS = 'localhost/releap/engineless:latest';

const ENGINE = 'dockerd';

/** Services that a package brings are not started during a build: nothing would end them. */
const NO_SERVICES =
  "if [ ! -e /usr/sbin/policy-rc.d ]; then printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d; " +
  "chmod 755 /usr/sbin/policy-rc.d; trap 'rm -f /usr/sbin/policy-rc.d' EXIT; fi";

/** How the engine is installed with each package manager. */
const INSTALL = {
  // Newer suites have the client in a package of its own.
  'apt-get':
    `set -e; ${NO_SERVICES}; export DEBIAN_FRONTEND=noninteractive; apt-get update; ` +
    'apt-get install -y --no-install-recommends docker.io ca-certificates kmod ' +
    '$(apt-cache show docker-cli >/dev/null 2>&1 && echo docker-cli); rm -rf /var/lib/apt/lists/*',
  apk: 'apk add --no-cache docker',
  dnf: '{ dnf install -y moby-engine || dnf install -y docker; } && dnf clean all',
};
type PackageManager = keyof typeof INSTALL;
const MANAGERS = Object.keys(INSTALL) as PackageManager[];

/** Lists those of the programs that an image has. */
export function findProgramsCommand(imageId: string): string {
  return [
    'set -e',
    `container=$(buildah from --pull=never ${imageId})`,
    'root=$(buildah mount "$container")',
    `for program in ${[ENGINE, ...MANAGERS].join(' ')}; do`,
    '  for folder in usr/local/sbin usr/local/bin usr/sbin usr/bin sbin bin; do',
    '    file=$root/$folder/$program',
    '    if [ -e "$file" ] || [ -L "$file" ]; then echo "$program"; break; fi',
    '  done',
    'done',
    'buildah rm "$container" > /dev/null',
  ].join('\n');
}

/** @param programs what `findProgramsCommand` has printed */
export function hasEngine(programs: string): boolean {
  return programs.split('\n').includes(ENGINE);
}

/** @throws ImageError when there is none */
export function packageManagerOf(programs: string): PackageManager {
  const lines = programs.split('\n');
  const manager = MANAGERS.find((name) => lines.includes(name));
  if (manager === undefined) {
    throw buildFailed(
      `docker: true needs an image with ${ENGINE}, or with one of ${MANAGERS.join(', ')} to install it with, and this ` +
        'image has none of them',
    );
  }
  return manager;
}

/**
 * The Dockerfile of the further steps.
 * @param user that the image runs as @throws ImageError when that is no user
 */
export function engineDockerfile(user: string, manager: PackageManager | undefined): string {
  if (!/^[\w.:-]*$/.test(user)) {
    throw buildFailed(`docker: true cannot be used with an image whose user is ${JSON.stringify(user)}`);
  }
  const isRoot = ['', '0', 'root'].includes(user);
  const install = manager === undefined ? [] : [`RUN ${INSTALL[manager]}`];
  const steps = isRoot ? install : ['USER 0', ...install, `USER ${user}`];
  return `${[`FROM ${ENGINELESS}`, ...steps, `LABEL ${DOCKER_LABEL}=true`].join('\n')}\n`;
}

/** What it says of a step that has failed. */
const OF_BUILDAH = /^(?:Error: building at STEP|subprocess exited with status|exit status) /;

/** Why an installation has failed. @param output the end of what it has printed */
export function installFailure(manager: PackageManager, output: string): Error {
  const lines = output.split('\n').filter((line) => line.trim() !== '' && !OF_BUILDAH.test(line));
  const said =
    lines.findLast((line) => /^(?:E|ERROR|Error): /.test(line)) ?? lines.at(-1) ?? 'no reason is given';
  return buildFailed(`docker: true could not install Docker with ${manager}: ${said}`);
}
