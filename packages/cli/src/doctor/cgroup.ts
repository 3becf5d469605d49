/** How processor and memory limits of sandboxes are enforced here. */
import { accessSync, constants, readFileSync } from 'node:fs';
import type { Check } from './check.ts';

const ROOT = '/sys/fs/cgroup';
const NEEDED = ['cpu', 'memory', 'pids'];
const COST_OF_1 =
  'memory of guests may be swapped out, and what sandboxes read from the disk and write to it cannot be limited. Version 2 is the default ' +
  'since Debian 11 and Ubuntu 21.10 (kernel option systemd.unified_cgroup_hierarchy=1)';
const WITHOUT_IO =
  'without the controller io: what sandboxes read from the disk and write to it cannot be limited';

/** @param root where version 2 is mounted */
export function checkCgroup(mounted = read('/proc/self/mounts'), root = ROOT): Check {
  const check = (status: Check['status'], detail: string): Check => ({
    id: 'cgroup',
    title: 'Control groups',
    status,
    detail,
  });
  const mounts = mounted
    .split('\n')
    .map((line) => line.split(' '))
    .filter((fields) => fields[2] === 'cgroup' || fields[2] === 'cgroup2');
  const unified = mounts.some((fields) => fields[2] === 'cgroup2' && fields[1] === root);
  const version = unified ? 'version 2' : 'version 1';
  const controllers = unified
    ? read(`${root}/cgroup.controllers`).trim().split(/\s+/)
    : mounts.filter((fields) => fields[2] === 'cgroup').flatMap((fields) => (fields[3] ?? '').split(','));
  if (!unified && controllers.length === 0)
    return check('missing', `none mounted on ${root}: limits cannot be enforced`);
  const absent = NEEDED.filter((name) => !controllers.includes(name));
  if (absent.length > 0)
    return check('missing', `${version}, without the controllers ${absent.join(' and ')}`);
  const path = unified ? root : (mounts.find((fields) => fields[3]?.split(',').includes('cpu'))?.[1] ?? root);
  try {
    accessSync(path, constants.W_OK);
  } catch {
    return check('missing', `${version}, but ${path} may not be written to: run the server as root`);
  }
  if (!unified) return check('warn', `${version}: ${COST_OF_1}`);
  return controllers.includes('io')
    ? check('ok', `${version}, with ${NEEDED.join(', ')} and io`)
    : check('warn', `${version}, ${WITHOUT_IO}`);
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
