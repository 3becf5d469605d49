/** What a sandbox was not allowed to send, put together from everything that denies: both firewalls and netd. */
import type { EgressDenial } from '@releap/contract';
import type { NetdDenial } from '@releap/contract/netd';
import { run } from '../process/index.ts';
import { GUEST } from './address-plan.ts';
import { type FirewallDenial, parseDenials } from './denial-rules.ts';
import { type DeniedStore, mergeDenials } from './denied-store.ts';
import type { Slot } from './slot.ts';

/** Who reads it more often gets the same answer again: each reading costs two processes. */
const FRESH_MS = 1_000;

/** What is denied inside a slot's namespace, by the chain that counts it. */
const INSIDE: Readonly<Record<string, Pick<EgressDenial, 'protocol' | 'reason' | 'address'>>> = {
  spoofed_mac: { protocol: 'ethernet', reason: 'spoofed' },
  spoofed_arp: { protocol: 'arp', reason: 'spoofed' },
  spoofed_source: { protocol: 'ip', reason: 'spoofed' },
  ipv6: { protocol: 'ipv6', reason: 'ipv6' },
  to_gateway: { protocol: 'ip', reason: 'host', address: GUEST.gatewayIp },
  too_many_queries: { protocol: 'dns', reason: 'too_many', address: GUEST.gatewayIp },
  too_many_flows: { protocol: 'ip', reason: 'too_many' },
};

interface Seen {
  count: number;
  firstMs: number;
  lastMs: number;
}

interface Reading {
  slot: Slot;
  at: number;
  list: Promise<EgressDenial[]>;
}

export interface DeniedLogOptions {
  /** What netd has denied it; rejects while netd does not run. */
  netd: (vmId: string) => Promise<NetdDenial[]>;
  /** What the firewall has denied, nothing of former holders of a slot. */
  firewall: () => Promise<FirewallDenial[]>;
  /** Where it is stored when the network of a sandbox ends; absent: nowhere. */
  store?: DeniedStore | undefined;
}

/** Entries have the times at which the firewall's counters were seen to grow: the kernel stores whole seconds of the last. */
export class DeniedLog {
  readonly #options: DeniedLogOptions;
  #firewall: { at: number; list: Promise<FirewallDenial[]> } | undefined;
  readonly #readings = new Map<string, Reading>();
  /** What the firewalls had counted at the last reading, by sandbox and kind. */
  readonly #seen = new Map<string, Map<string, Seen>>();
  /** Sandboxes whose present network was stored. */
  readonly #stored = new Set<string>();

  constructor(options: DeniedLogOptions) {
    this.#options = options;
  }

  /**
   * Newest first, with what was denied on earlier networks of the sandbox.
   * @param slot its network; undefined when it has none
   * @returns undefined for a sandbox that has no network and of which nothing was stored
   */
  async read(vmId: string, slot: Slot | undefined): Promise<EgressDenial[] | undefined> {
    const stored = await this.#options.store?.read(vmId);
    if (slot === undefined || this.#stored.has(vmId)) return stored;
    return mergeDenials(stored ?? [], await this.#current(vmId, slot));
  }

  /** Stores what was denied on the network of a sandbox, which is about to end. */
  async keep(vmId: string, slot: Slot): Promise<void> {
    const { store } = this.#options;
    if (store === undefined || this.#stored.has(vmId)) return;
    // Of the last moment, not of the last reading.
    this.#readings.delete(vmId);
    this.#firewall = undefined;
    const denied = await this.#current(vmId, slot);
    if (denied.length > 0) await store.add(vmId, denied);
    this.#stored.add(vmId);
  }

  /** Stores what a firewall that is about to be loaded again has denied. */
  async keepFirewall(vmId: string, slot: Slot, denials: readonly FirewallDenial[]): Promise<void> {
    const own = group(denials.filter(({ source }) => source === slot.hostAddress));
    if (own.length > 0)
      await this.#options.store?.add(
        vmId,
        own.map((denial) => fromFirewall(denial, new Map())),
      );
  }

  async #current(vmId: string, slot: Slot): Promise<EgressDenial[]> {
    const known = this.#readings.get(vmId);
    if (known?.slot.index === slot.index && performance.now() - known.at < FRESH_MS) return await known.list;
    const reading = { slot, at: performance.now(), list: this.#read(vmId, slot) };
    this.#readings.set(vmId, reading);
    reading.list.catch(() => {
      if (this.#readings.get(vmId) === reading) this.#readings.delete(vmId);
    });
    return await reading.list;
  }

  /** The sandbox has no network any more. */
  forget(vmId: string): void {
    this.#firewall = undefined;
    this.#readings.delete(vmId);
    this.#seen.delete(vmId);
    this.#stored.delete(vmId);
  }

  /** One list for all sandboxes. */
  #readFirewall(): Promise<FirewallDenial[]> {
    if (this.#firewall === undefined || performance.now() - this.#firewall.at > FRESH_MS)
      this.#firewall = { at: performance.now(), list: this.#options.firewall() };
    return this.#firewall.list;
  }

  async #read(vmId: string, slot: Slot): Promise<EgressDenial[]> {
    const [host, inside, netd] = await Promise.all([
      this.#readFirewall(),
      run('nsenter', [`--net=${slot.netnsPath}`, '--', 'nft', '-j', 'list', 'ruleset']),
      // What the firewalls say is worth having while netd restarts.
      this.#options.netd(vmId).catch(() => []),
    ]);
    const seen = this.#seen.get(vmId) ?? new Map<string, Seen>();
    this.#seen.set(vmId, seen);
    return mergeDenials([
      ...group([
        ...host.filter(({ source }) => source === slot.hostAddress),
        ...parseDenials(inside, slot.hostAddress),
      ]).map((denial) => fromFirewall(denial, seen)),
      ...countersOf(inside).map(([chain, count]) => fromNamespace(chain, count, seen)),
      ...netd.map(fromNetd),
    ]);
  }
}

/** Kinds of ICMP to one address are one entry. */
function group(denials: readonly FirewallDenial[]): FirewallDenial[] {
  const groups = new Map<string, FirewallDenial>();
  for (const denial of denials) {
    const key = keyOf(denial);
    const same = groups.get(key);
    groups.set(
      key,
      same === undefined
        ? denial
        : { ...same, count: same.count + denial.count, agoMs: Math.min(same.agoMs, denial.agoMs) },
    );
  }
  return [...groups.values()];
}

function keyOf({ protocol, address, port, reason }: FirewallDenial): string {
  return [protocol, address, port, reason].join(' ');
}

/** The times of a counter, which has none: those at which it was read with another value. */
function times(seen: Map<string, Seen>, key: string, count: number, lastMs: number): Seen {
  const before = seen.get(key);
  if (before?.count === count) return before;
  const now = { count, firstMs: before?.firstMs ?? lastMs, lastMs: Math.max(lastMs, before?.lastMs ?? 0) };
  seen.set(key, now);
  return now;
}

function fromFirewall(denial: FirewallDenial, seen: Map<string, Seen>): EgressDenial {
  const { protocol, address, port, reason, count, agoMs } = denial;
  const { firstMs, lastMs } = times(seen, keyOf(denial), count, Date.now() - agoMs);
  return {
    protocol,
    address,
    ...(port === undefined ? {} : { port }),
    reason,
    count,
    first_at: new Date(firstMs).toISOString(),
    last_at: new Date(lastMs).toISOString(),
  };
}

function fromNamespace(chain: string, count: number, seen: Map<string, Seen>): EgressDenial {
  const kind = INSIDE[chain];
  if (kind === undefined) throw new Error(`no such chain of a slot: ${chain}`);
  const { lastMs } = times(seen, chain, count, Date.now());
  return { ...kind, count, last_at: new Date(lastMs).toISOString() };
}

function fromNetd({ first_ms: first, last_ms: last, ...denial }: NetdDenial): EgressDenial {
  return { ...denial, first_at: new Date(first).toISOString(), last_at: new Date(last).toISOString() };
}

interface NftRule {
  rule?: { chain?: string; expr?: { counter?: { packets?: number } }[] };
}

/** Chains of a slot's namespace that have counted something. */
function countersOf(listing: string): [chain: string, packets: number][] {
  const { nftables = [] } = JSON.parse(listing) as { nftables?: NftRule[] };
  return nftables.flatMap(({ rule }): [string, number][] => {
    const packets = rule?.expr?.find(({ counter }) => counter !== undefined)?.counter?.packets ?? 0;
    const chain = rule?.chain ?? '';
    return packets > 0 && chain in INSIDE ? [[chain, packets]] : [];
  });
}
