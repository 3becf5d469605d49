/**
 * How the firewall records what it denies: a set with a counter for each source and destination, which the kernel bounds and
 * which is read when a tenant asks. So a guest that is denied often costs the host nothing but the packets. One set for all,
 * because each `nft` process reads all sets of the table. Pure.
 */
import type { DenialReason } from '@releap/contract';
import { type AddressPlan, vethPrefix } from './address-plan.ts';

/** New destinations of one sandbox at once, and in an hour; further ones are denied without being counted. */
const NEW_PER_HOUR = 512;
/** Of all sandboxes: few are denied much. */
const MAX_DENIALS = 16_384;
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
export function refuseAs(reason: keyof typeof REASON_MARKS, chain = 'refuse'): string {
  return `meta mark set ${REASON_MARKS[reason]} goto ${chain}`;
}

/** Destinations that the set of one slot has at most; further ones are denied without being counted. */
const MAX_INSIDE = 512;

/**
 * The same inside the namespace of a slot, for one sandbox. A set that is full adds nothing, and ends the rule. No rule has a set
 * of its own, which hostd could not copy.
 */
export function renderInsideDenials(): string {
  const update = (port: string): string =>
    `update @${DENIAL_SET} { ip daddr . meta l4proto . ${port} . meta mark }`;
  return `
  set ${DENIAL_SET} { type ipv4_addr . inet_proto . inet_service . mark; size ${MAX_INSIDE}; flags dynamic,timeout; timeout ${REMEMBERED_S}s; counter; }
  chain count_denied {
    meta l4proto tcp ${update('th dport')}
    meta l4proto udp ${update('th dport')}
    meta l4proto != tcp meta l4proto != udp ${update('th sport')}
  }
`;
}

/** The sets, and the chain that `refuse` calls first. A set with a counter counts when it is asked as well: another one is asked. */
export function renderDenials(): string {
  const key = (port: string): string => `ip saddr . ip daddr . meta l4proto . ${port} . meta mark`;
  const [ports, others] = [
    ['meta l4proto { tcp, udp }', key('th dport')],
    ['meta l4proto != { tcp, udp }', key('th sport')],
  ] as const;
  const known = [ports, others].map(
    ([kind, of]) =>
      `${kind} ${of} @denied_known update @denied_known { ${of} } update @denied { ${of} } return`,
  );
  const added = [ports, others].map(
    ([kind, of]) => `${kind} update @denied_known { ${of} } update @denied { ${of} }`,
  );
  return `
  set denied { type ipv4_addr . ipv4_addr . inet_proto . inet_service . mark; size ${MAX_DENIALS}; flags dynamic,timeout; timeout ${REMEMBERED_S}s; counter; }
  set denied_known { type ipv4_addr . ipv4_addr . inet_proto . inet_service . mark; size ${MAX_DENIALS}; flags dynamic,timeout; timeout ${REMEMBERED_S}s; }
  set denied_new { type ipv4_addr; size 2048; flags dynamic,timeout; timeout ${REMEMBERED_S}s; }
  chain deny {
    ${known.join('\n    ')}
    add @denied_new { ip saddr limit rate over ${NEW_PER_HOUR}/hour burst ${NEW_PER_HOUR} packets } return
    ${added.join('\n    ')}
  }
`;
}

/** The rule that counts what is refused to a sandbox. */
export function countDenial(plan: AddressPlan): string {
  return `iifname "${vethPrefix(plan.tag)}*" meta nfproto ipv4 jump deny`;
}

/** Forgets these. */
export function renderDenialsRemoval(plan: AddressPlan, denials: readonly FirewallDenial[]): string {
  if (denials.length === 0) return '';
  const elements = denials.map(({ element }) => element.join(' . '));
  return `delete element inet ${plan.table} denied { ${elements.join(', ')} }\n`;
}

/** A destination that the firewall denied. */
export interface FirewallDenial {
  /** The sandbox, by its address on the host. */
  source: string;
  /** As the set has it. */
  element: readonly (string | number)[];
  protocol: string;
  address: string;
  /** Only of TCP and UDP. */
  port?: number;
  reason: DenialReason;
  count: number;
  /** How long ago the last packet was, in milliseconds. */
  agoMs: number;
}

/** Name of the set. */
export const DENIAL_SET = 'denied';

/**
 * @param listing what `nft -j list set` prints of the set
 * @param inside the sandbox, by its address on the host, when the set is that of its namespace
 */
export function parseDenials(listing: string, inside?: string): FirewallDenial[] {
  const { nftables = [] } = JSON.parse(listing) as { nftables?: { set?: { elem?: unknown[] } }[] };
  return nftables.flatMap(({ set }) => (set?.elem ?? []).flatMap((element) => parseElement(element, inside)));
}

/** `nft` prints numbers on a machine without /etc/protocols, as a minimal Debian is. */
const PROTOCOL_NAMES = new Map<unknown, string>([
  [1, 'icmp'],
  [6, 'tcp'],
  [17, 'udp'],
]);

interface Element {
  elem?: { val?: { concat?: unknown[] }; expires?: unknown; counter?: { packets?: unknown } };
}

function parseElement(element: unknown, inside: string | undefined): FirewallDenial[] {
  const { val, expires, counter } = (element as Element).elem ?? {};
  const [source, address, protocol, port, mark] = [
    ...(inside === undefined ? [] : [inside]),
    ...(val?.concat ?? []),
  ];
  const reason = Object.entries(REASON_MARKS).find(([, number]) => number === mark)?.[0];
  if (
    typeof source !== 'string' ||
    typeof address !== 'string' ||
    reason === undefined ||
    typeof counter?.packets !== 'number'
  )
    return [];
  const name = PROTOCOL_NAMES.get(protocol) ?? String(protocol);
  return [
    {
      source,
      element: [source, address, name, Number(port), Number(mark)],
      protocol: name,
      address,
      ...((name === 'tcp' || name === 'udp') && typeof port === 'number' ? { port } : {}),
      reason: reason as DenialReason,
      count: counter.packets,
      agoMs: 1000 * Math.max(0, REMEMBERED_S - (typeof expires === 'number' ? expires : REMEMBERED_S)),
    },
  ];
}
