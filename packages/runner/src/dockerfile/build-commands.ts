/** What the micro-VM of a build runs, as shell commands in the folder of its disk. */
import { BUILD_DISK } from '../image/builtin/builder.ts';
import type { BuildLimits } from './build-limits.ts';

export const CONTEXT = `${BUILD_DISK}/context`;
/** A Dockerfile that is not in the context. */
export const INLINE = `${BUILD_DISK}/Dockerfile`;
/** Where buildah writes the id of its result. */
export const ID_FILE = `${BUILD_DISK}/iid`;
/** The result, as an OCI layout. */
export const RESULT_FOLDER = `${BUILD_DISK}/out`;

/** The control group of buildah and its steps: the agent stays outside, and answers whatever they do. */
const GROUP = '/sys/fs/cgroup/build';
/** Memory of the micro-VM that the group does not get: the agent's and the kernel's. */
const RESERVED_MIB = 192;

/** What the group was refused: `oom_kill N` and `pids_max N`, a line each. */
export const EVENTS = `cat ${GROUP}/memory.events; sed s/^/pids_/ ${GROUP}/pids.events`;

/** Runs first: the layer cache without what an earlier build has left, and the control group. */
export function prepareCommand({ memMib, processes }: Pick<BuildLimits, 'memMib' | 'processes'>): string {
  return [
    'set -e',
    `cd ${BUILD_DISK}`,
    'mkdir -p tmp bases',
    // Caches of RUN --mount=type=cache stay.
    "find tmp -mindepth 1 -maxdepth 1 ! -name 'buildah-cache-*' -exec rm -rf {} +",
    'rm -rf context out iid Dockerfile',
    'mkdir context',
    'echo "+memory +pids" > /sys/fs/cgroup/cgroup.subtree_control',
    `mkdir -p ${GROUP}`,
    `echo ${(memMib - RESERVED_MIB) * 2 ** 20} > ${GROUP}/memory.max`,
    `echo ${processes} > ${GROUP}/pids.max`,
  ].join('\n');
}

/** @param bases arguments for base images. Both outputs are one. */
export function buildCommand(file: string, bases: readonly string[]): string {
  // Jobs in order, so that the output of steps is not mixed. Steps stay in the control group of buildah, and have the network
  // of the micro-VM.
  const options =
    '--isolation oci --runtime crun --runtime-flag cgroup-manager=disabled --network host ' +
    '--layers --pull=never --format oci --jobs 1 --identity-label=false --iidfile';
  return inGroup(['buildah', 'build', ...options.split(' '), ID_FILE, '--file', file, ...bases, CONTEXT]);
}

export function pushCommand(imageId: string): string {
  const target = `oci:${RESULT_FOLDER}:image`;
  return inGroup(['buildah', 'push', '--quiet', '--disable-compression', '--format', 'oci', imageId, target]);
}

function inGroup(argv: readonly string[]): string {
  const script = `echo $$ > ${GROUP}/cgroup.procs; exec "$@" 2>&1`;
  const quoted = [script, 'sh', ...argv].map((text) => `'${text.replaceAll("'", `'\\''`)}'`);
  return `exec sh -c ${quoted.join(' ')}`;
}
