/** How processor and memory limits of sandboxes are enforced here. */
import { accessSync, constants, readFileSync } from 'node:fs';
import type { Check } from './check.ts';

const ROOT = '/sys/fs/cgroup';
const NEEDED = ['cpu', 'memory'];

export function checkCgroup(): Check {
  const check = (status: Check['status'], detail: string): Check => ({
    id: 'cgroup',
    title: 'Control groups',
    status,
    detail,
  });
  const mounts = read('/proc/self/mounts')
    .split('\n')
    .map((line) => line.split(' '))
    .filter((fields) => fields[2] === 'cgroup' || fields[2] === 'cgroup2');
  const unified = mounts.find((fields) => fields[2] === 'cgroup2' && fields[1] === ROOT);
  if (unified) {
    const controllers = read(`${ROOT}/cgroup.controllers`).trim().split(/\s+/);
    return verdict(check, 'version 2', controllers, ROOT);
  }
  const controllers = mounts
    .filter((fields) => fields[2] === 'cgroup')
    .flatMap((fields) => (fields[3] ?? '').split(','));
  if (controllers.length === 0) return check('missing', `none mounted on ${ROOT}: limits cannot be enforced`);
  return verdict(
    check,
    'version 1',
    controllers,
    mounts.find((fields) => fields[3]?.split(',').includes('cpu'))?.[1] ?? ROOT,
  );
}

function verdict(
  check: (status: Check['status'], detail: string) => Check,
  version: string,
  controllers: string[],
  path: string,
): Check {
  const absent = NEEDED.filter((name) => !controllers.includes(name));
  if (absent.length > 0)
    return check('missing', `${version}, without the controllers ${absent.join(' and ')}`);
  try {
    accessSync(path, constants.W_OK);
    return check('ok', `${version}, with ${NEEDED.join(' and ')}`);
  } catch {
    return check('missing', `${version}, but ${path} may not be written to: run the server as root`);
  }
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
