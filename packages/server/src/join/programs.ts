/** Programs without which no runner starts, with the packages of Debian that have them. `rlp doctor` says more. */
import { accessSync, constants } from 'node:fs';
import path from 'node:path';

const PROGRAMS = {
  ip: 'iproute2',
  nft: 'nftables',
  nsenter: 'util-linux',
  sysctl: 'procps',
  'mkfs.ext4': 'e2fsprogs',
} as const;

/** @throws with the packages that are to be installed */
export function assertPrograms(folders: readonly string[] = (process.env['PATH'] ?? '').split(':')): void {
  const missing = Object.entries(PROGRAMS).filter(
    ([program]) => !folders.some((folder) => canRun(folder, program)),
  );
  if (missing.length === 0) return;
  const names = missing.map(([program]) => program).join(', ');
  const packages = missing.map(([, name]) => name).join(' ');
  throw new Error(`this machine lacks ${names}: apt-get install ${packages}`);
}

function canRun(folder: string, program: string): boolean {
  try {
    accessSync(path.join(folder, program), constants.X_OK);
    return true;
  } catch {
    return false;
  }
}
