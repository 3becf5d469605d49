/**
 * How the firewall records what it denies: one set a slot with a counter for each destination, which the kernel bounds and
 * which is read when a tenant asks. So a guest that is denied often costs the host nothing but the packets. Pure.
 */
import type { DenialReason } from '@releap/contract';
import { type AddressPlan, slotPlan } from './address-plan.ts';

/** Destinations that are counted apart for one sandbox; the rest is counted together. */
const MAX_DENIALS_PER_SANDBOX = 512;
/** A destination is forgotten after this time without a denial, in seconds. */
const REMEMBERED_S = 3_600;

/** As the firewall writes them into a packet's mark and from there into the set. */
const REASON_MARKS = {
  not_allowed: 1,
  host: 2,
  sandbox: 3,
  reserved: 4,
  private_network: 5,
  too_many: 6,
  quic: 7,
} as const satisfies Partial<Record<DenialReason, number>>;

/** The end of a rule that refuses, for a reason that the log shows. */
export function refuseAs(reason: keyof typeof REASON_MARKS): string {
  return `meta mark set ${REASON_MARKS[reason]} goto refuse`;
}

/** Sets, chains and the map by which a packet's source finds its own. `refuse` looks into the map first. */
export function renderDenials(plan: AddressPlan): string {
  const slots = Array.from({ length: plan.slots }, (_, index) => index);
  const sets = slots.map(
    (index) => `
  set denied_${index} { type ipv4_addr . inet_proto . inet_service . mark; size ${MAX_DENIALS_PER_SANDBOX}; flags dynamic,timeout; timeout ${REMEMBERED_S}s; counter; }
  chain deny_${index} {
    meta l4proto { tcp, udp } update @denied_${index} { ip daddr . meta l4proto . th dport . meta mark } return
    meta l4proto != { tcp, udp } update @denied_${index} { ip daddr . meta l4proto . th sport . meta mark } return
  }`,
  );
  const elements = slots.map((index) => `${slotPlan(plan, index).hostAddress} : jump deny_${index}`);
  return `${sets.join('')}
  map denials { type ipv4_addr : verdict; elements = { ${elements.join(', ')} }; }
`;
}

/** Forgets what was denied to these slots. */
export function renderDenialsRemoval(plan: AddressPlan, indexes: Iterable<number>): string {
  return [...indexes].map((index) => `flush set inet ${plan.table} denied_${index}\n`).join('');
}

/** A destination that the firewall denied. */
export interface FirewallDenial {
  protocol: string;
  address: string;
  /** Only of TCP and UDP. */
  port?: number;
  reason: DenialReason;
  count: number;
  /** How long ago the last packet was, in milliseconds. */
  agoMs: number;
}

/** Name of the set of a slot. */
export function denialSet(index: number): string {
  return `denied_${index}`;
}

/** @param listing what `nft -j list set` prints of the set of a slot */
export function parseDenials(listing: string): FirewallDenial[] {
  const { nftables = [] } = JSON.parse(listing) as { nftables?: { set?: { elem?: unknown[] } }[] };
  return nftables.flatMap(({ set }) => (set?.elem ?? []).flatMap(parseElement));
}

interface Element {
  elem?: { val?: { concat?: unknown[] }; expires?: unknown; counter?: { packets?: unknown } };
}

function parseElement(element: unknown): FirewallDenial[] {
  const { val, expires, counter } = (element as Element).elem ?? {};
  const [address, protocol, port, mark] = val?.concat ?? [];
  const reason = Object.entries(REASON_MARKS).find(([, number]) => number === mark)?.[0];
  if (typeof address !== 'string' || reason === undefined || typeof counter?.packets !== 'number') return [];
  const name = String(protocol);
  return [
    {
      protocol: name,
      address,
      ...((name === 'tcp' || name === 'udp') && typeof port === 'number' ? { port } : {}),
      reason: reason as DenialReason,
      count: counter.packets,
      agoMs: 1000 * Math.max(0, REMEMBERED_S - (typeof expires === 'number' ? expires : REMEMBERED_S)),
    },
  ];
}
