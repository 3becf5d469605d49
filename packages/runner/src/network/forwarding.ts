/**
 * The kernel's switch that lets this machine pass packets on. It belongs to the whole machine, so what it was is
 * recorded outside any one service's home, and the last service that leaves puts it back.
 */
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../process/index.ts';

const SWITCH = '/proc/sys/net/ipv4/ip_forward';

/** Turns forwarding on; remembers in `runDir` when it was off. */
export async function enableForwarding(runDir: string): Promise<void> {
  if ((await readFile(SWITCH, 'utf8')).trim() === '1') return;
  await mkdir(runDir, { recursive: true, mode: 0o755 });
  await writeFile(recordPath(runDir), 'was 0\n');
  await writeFile(SWITCH, '1\n');
}

/**
 * Turns forwarding off again if it was off before the first service started, and no other program needs it by now: neither
 * another service of ours, nor other software with rules for forwarded packets (containers, virtual machines).
 */
export async function restoreForwarding(runDir: string): Promise<void> {
  try {
    await readFile(recordPath(runDir));
  } catch {
    return;
  }
  const listing = JSON.parse(await run('nft', ['-j', 'list', 'chains'])) as {
    nftables?: { chain?: { table: string; hook?: string } }[];
  };
  const chains = (listing.nftables ?? []).flatMap(({ chain }) => chain ?? []);
  const forwarding = chains.filter((chain) => chain.hook === 'forward');
  if (forwarding.some((chain) => chain.table.startsWith('releap_'))) return;
  if (forwarding.length === 0) await writeFile(SWITCH, '0\n');
  await rm(recordPath(runDir), { force: true });
}

function recordPath(runDir: string): string {
  return join(runDir, 'ip-forward');
}
