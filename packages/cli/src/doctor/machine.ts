import { availableParallelism, cpus, release, totalmem } from 'node:os';
import { existsSync, readFileSync } from 'node:fs';
import type { Check } from './check.ts';

/** Linux has mount_setattr(2) since 5.12. `hostd jail` mounts the root of each VMM with it. */
const OLDEST_KERNEL = { major: 5, minor: 12 };

/** @param version of the kernel, as uname(2) gives it */
export function checkKernel(version: string): Check {
  const [major = 0, minor = 0] = version.split('.').map((part) => Number.parseInt(part, 10));
  const isNew =
    major > OLDEST_KERNEL.major || (major === OLDEST_KERNEL.major && minor >= OLDEST_KERNEL.minor);
  const oldest = `${OLDEST_KERNEL.major}.${OLDEST_KERNEL.minor}`;
  return {
    id: 'kernel',
    title: 'Kernel',
    status: isNew ? 'ok' : 'missing',
    detail: isNew
      ? `Linux ${version}`
      : `Linux ${version}: sandboxes need Linux ${oldest} or newer (mount_setattr, for the root folder of each VMM)`,
  };
}

export function checkMachine(): Check[] {
  const system = /^PRETTY_NAME="?([^"\n]*)/m.exec(readText('/etc/os-release'))?.[1] ?? process.platform;
  const memory = totalmem() / 1024 ** 3;
  const linux = process.platform === 'linux';
  const root = process.getuid?.() === 0;
  return [
    {
      id: 'system',
      title: 'System',
      status: linux ? 'ok' : 'missing',
      detail: linux ? `${system}, ${process.arch}` : `${process.platform}: a host of sandboxes runs Linux`,
    },
    ...(linux ? [checkKernel(release())] : []),
    {
      id: 'hardware',
      title: 'Hardware',
      status: memory < 2 ? 'warn' : 'ok',
      detail: `${availableParallelism()} cores (${cpus()[0]?.model.trim() ?? 'unknown'}), ${memory.toFixed(1)} GiB of memory`,
    },
    {
      id: 'user',
      title: 'User',
      status: root ? 'ok' : 'warn',
      detail: root ? 'root' : 'not root: a server needs root for networks and limits; rlp itself does not',
    },
  ];
}

function readText(path: string): string {
  return existsSync(path) ? readFileSync(path, 'utf8') : '';
}
