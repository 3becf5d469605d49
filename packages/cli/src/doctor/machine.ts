import { availableParallelism, cpus, release, totalmem } from 'node:os';
import { existsSync, readFileSync } from 'node:fs';
import type { Check } from './check.ts';

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
      detail: linux
        ? `${system}, Linux ${release()}, ${process.arch}`
        : `${process.platform}: a host of sandboxes runs Linux`,
    },
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
