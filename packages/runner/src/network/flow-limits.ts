import { readFile } from 'node:fs/promises';

/** Connections one sandbox may hold at once through the host, at most. */
export const MAX_FLOWS_PER_SANDBOX = 4096;
const MIN_FLOWS_PER_SANDBOX = 256;
/** Of the host's connection table. The rest is for the host itself: its API, its database. */
const SHARE = 0.75;
/** So many sandboxes at their limit fill what all may have together: few have many connections. */
const FULL_AT = 64;
/** What a kernel has by default on a machine of some size. */
const DEFAULT_TABLE = 262_144;

/** How many connections through the host's connection table (conntrack) there may be, which all of the host shares. */
export interface FlowLimits {
  perSandbox: number;
  all: number;
}

/** @param slots how many sandboxes there can be */
export async function flowLimits(slots: number): Promise<FlowLimits> {
  const text = await readFile('/proc/sys/net/netfilter/nf_conntrack_max', 'utf8').catch(() => '');
  return flowLimitsOf(Number(text.trim()) || DEFAULT_TABLE, slots);
}

/** @param table entries that the host's table holds */
export function flowLimitsOf(table: number, slots: number): FlowLimits {
  const all = Math.floor(table * SHARE);
  const fair = Math.floor(all / Math.min(slots, FULL_AT));
  return { all, perSandbox: Math.min(MAX_FLOWS_PER_SANDBOX, Math.max(MIN_FLOWS_PER_SANDBOX, fair)) };
}
