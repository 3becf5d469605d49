/**
 * The nftables text of the host's side: one table of our own, default deny for whatever comes from a sandbox.
 * Pure. What each rule protects from is told in docs/network.md.
 */
import {
  type EgressRules,
  formatCidr,
  NEVER_REACHABLE,
  type NameServer,
  type NetdPin,
  PRIVATE_RANGES,
} from '@releap/contract/netd';
import {
  acceptedMark,
  type AddressPlan,
  blockNumber,
  GUEST,
  redirectMark,
  slotPlan,
  vethPrefix,
} from './address-plan.ts';
import { countDenial, refuseAs, renderDenials } from './denial-rules.ts';
import type { FlowLimits } from './flow-limits.ts';

/** Addresses one sandbox may have pinned by DNS at once. */
export const MAX_PINS_PER_SANDBOX = 4096;

/** What the firewall enforces for one sandbox beyond the rules for all. */
export interface SlotPolicy {
  /** Absent: everything that is not private. */
  rules?: EgressRules | undefined;
  /** All its connections are led through the egress proxy, because secrets may be put into them. */
  intercept?: boolean;
}

export interface HostRulesInput {
  plan: AddressPlan;
  netd: NetdAccess;
  /** Connections through the host, of one sandbox and of all. */
  flows: FlowLimits;
  /** The only local user, beside netd's and the engine's of previews, that may open connections to sandboxes: the runner's own. */
  runnerUid: number;
  /** Policies in force, by slot index. */
  policies: ReadonlyMap<number, SlotPolicy>;
  /** Pinned addresses that outlive this load, by slot index. */
  pins: ReadonlyMap<number, readonly NetdPin[]>;
}

/** How sandboxes reach netd, and what netd may reach. */
export interface NetdAccess {
  /** Port at the service address where its name server listens. */
  dnsPort: number;
  /** Port at the service address of the egress proxy; absent while there is none: what is led to it is refused. */
  egressPort?: number | undefined;
  /** Port at the service address of the store proxy; absent before the first one. */
  storesPort?: number | undefined;
  /** The user that it is. */
  uid: number;
  /** The user that the interceptor is. */
  interceptUid: number;
  /** Another user who may open connections to sandboxes. */
  clientUid?: number | undefined;
  /** The name servers that it asks. */
  nameServers: readonly NameServer[];
}

function resolverRules(plan: AddressPlan, { dnsPort, storesPort }: NetdAccess): string[] {
  const lead = (what: string, port: number): string =>
    `iifname "${vethPrefix(plan.tag)}*" ip daddr ${plan.serviceAddress} ${what} dnat ip to ${plan.serviceAddress}:${port}`;
  return [
    ...['udp', 'tcp'].map((proto) => lead(`${proto} dport 53`, dnsPort)),
    ...(storesPort === undefined ? [] : [lead(`tcp dport ${GUEST.storesPort}`, storesPort)]),
  ];
}

/**
 * While no proxy listens, the first packet of a connection is dropped, not refused: the guest's kernel repeats it until the next
 * proxy is there, and the programs that use a mount see a delay and not an error.
 */
function storesRules({ serviceAddress }: AddressPlan, port: number): string[] {
  const toProxy = `ip daddr ${serviceAddress} tcp dport ${port}`;
  // The expression matches where a socket listens at exactly this address.
  return [`${toProxy} socket wildcard 0 accept`, `${toProxy} drop`];
}

/** So that a connection that was made while the table was away can be told from those that it let through. */
function markAccepted(plan: AddressPlan): string {
  return `ct mark set ${acceptedMark(blockNumber(plan.block))}`;
}

function toHostRules(plan: AddressPlan, { dnsPort, storesPort }: NetdAccess): string[] {
  const own = `ip daddr ${plan.serviceAddress}`;
  return [
    'ct state established,related accept',
    `${own} ${markAccepted(plan)}`,
    // Only a socket that listens at exactly this address: netd names the port, and must not choose another service of the host.
    `${own} udp dport ${dnsPort} socket wildcard 0 accept`,
    `${own} tcp dport ${dnsPort} socket wildcard 0 accept`,
    ...storesRules(plan, storesPort ?? GUEST.storesPort),
    `meta mark ${redirectMark(blockNumber(plan.block))} goto redirected`,
    refuseAs('host'),
  ];
}

/**
 * The marks come first: where no proxy listens tproxy ends the rule, and the packet is refused as one to a port of the host that
 * nothing listens at.
 */
function toProxyRules(plan: AddressPlan, { egressPort }: NetdAccess): string[] {
  const mark = redirectMark(blockNumber(plan.block));
  const redirect = egressPort === undefined ? '' : ` tproxy ip to ${plan.serviceAddress}:${egressPort}`;
  return [`meta l4proto tcp meta mark set ${mark} ct mark set ${mark}${redirect} accept`];
}

function fromNetdRules({ nameServers }: NetdAccess): string[] {
  return [
    'ct state established,related accept',
    ...nameServers.map(({ address, port }) => {
      const [bare = ''] = address.split('%');
      return `${bare.includes(':') ? 'ip6' : 'ip'} daddr ${bare} meta l4proto { tcp, udp } th dport ${port} accept`;
    }),
    'goto from_proxy',
  ];
}

/** Leads questions and redirected connections to other ports of netd's, and lets it ask other name servers. */
export function renderNetd(plan: AddressPlan, netd: NetdAccess): string {
  const chain = (name: string, rules: string[]): string =>
    [
      `flush chain inet ${plan.table} ${name}`,
      ...rules.map((rule) => `add rule inet ${plan.table} ${name} ${rule}`),
    ].join('\n');
  return `${chain('resolver', resolverRules(plan, netd))}\n${chain('sandbox_to_host', toHostRules(plan, netd))}\n${chain('to_proxy', toProxyRules(plan, netd))}\n${chain('from_netd', fromNetdRules(netd))}\n`;
}

/** The whole table; loading it replaces an older one of ours in one transaction. */
export function renderHostTable(input: HostRulesInput): string {
  const { plan } = input;
  const veths = `"${vethPrefix(plan.tag)}*"`;
  const sources = Array.from({ length: plan.slots }, (_, index) => slotPlan(plan, index)).map(
    (slot) => `"${slot.veth}" . ${slot.hostAddress}`,
  );
  const table = `inet ${plan.table}`;
  const mark = redirectMark(blockNumber(plan.block));
  const base = `
add table ${table}
delete table ${table}
table ${table} {
  set sources { type ifname . ipv4_addr; elements = { ${sources.join(', ')} }; }
  set never { type ipv4_addr; flags interval; elements = { ${NEVER_REACHABLE.map(formatCidr).join(', ')} }; }
  set private { type ipv4_addr; flags interval; elements = { ${PRIVATE_RANGES.map(formatCidr).join(', ')} }; }
  set flows { type ipv4_addr; size 2048; flags dynamic; }
  set all_flows { type nf_proto; size 4; flags dynamic; }
  map policies { type ipv4_addr : verdict; }
  map redirects { type ipv4_addr : verdict; }
${renderDenials()}
  chain refuse {
    ${countDenial(plan)}
    meta l4proto tcp counter reject with tcp reset
    counter reject with icmpx admin-prohibited
  }

  chain guard {
    type filter hook prerouting priority raw; policy accept;
    iifname ${veths} jump guard_sandbox
  }
  chain guard_sandbox {
    meta nfproto != ipv4 counter drop
    iifname . ip saddr != @sources counter drop
  }

  chain proxied {
    type filter hook prerouting priority mangle; policy accept;
    iifname ${veths} meta l4proto tcp jump redirect_sandbox
  }
  chain redirect_sandbox {
    ct mark ${mark} tcp flags & (syn | ack) != syn meta mark set ${mark} accept
    tcp flags & (syn | ack) == syn ip saddr vmap @redirects
  }
  chain to_proxy {
    ${toProxyRules(plan, input.netd).join('\n    ')}
  }
  chain redirected {
    ${flowRules(input.flows).join('\n    ')}
    accept
  }

  chain resolver {
    type nat hook prerouting priority dstnat; policy accept;
    ${resolverRules(plan, input.netd).join('\n    ')}
  }

  chain to_host {
    type filter hook input priority filter; policy accept;
    iifname ${veths} jump sandbox_to_host
  }
  chain sandbox_to_host {
    ${toHostRules(plan, input.netd).join('\n    ')}
  }

  chain through_host {
    type filter hook forward priority filter; policy accept;
    iifname ${veths} jump from_sandbox
    oifname ${veths} jump to_sandbox
  }
  chain from_sandbox {
    oifname ${veths} ${refuseAs('sandbox')}
    ip daddr ${formatCidr(plan.block)} ${refuseAs('sandbox')}
    tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu
    ct state established,related accept
    ct state invalid counter drop
    tcp flags & (fin | syn | rst | ack) != syn counter reject with tcp reset
    ip daddr @never ${refuseAs('reserved')}
    ${flowRules(input.flows).join('\n    ')}
    ${markAccepted(plan)}
    ip saddr vmap @policies
    ip daddr @private ${refuseAs('private_network')}
    accept
  }
  chain to_sandbox {
    tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu
    ct state established,related accept
    counter drop
  }

  chain out_of_host {
    type filter hook output priority filter; policy accept;
    oifname ${veths} jump host_to_sandbox
    oifname "${plan.bridge}" jump refuse
    meta skuid ${input.netd.uid} jump from_netd
    meta skuid ${input.netd.interceptUid} jump from_proxy
  }
  chain host_to_sandbox {
    ct state established,related accept
    tcp flags & (fin | syn | rst | ack) != syn counter reject with tcp reset
    ${markAccepted(plan)}
    meta skuid { ${[input.runnerUid, input.netd.uid, input.netd.clientUid].filter((uid) => uid !== undefined).join(', ')} } accept
    jump refuse
  }
  chain from_netd {
    ${fromNetdRules(input.netd).join('\n    ')}
  }
  chain from_proxy {
    ct state established,related accept
    meta l4proto != tcp goto refuse
    ip daddr @never goto refuse
    ip daddr @private goto refuse
    fib daddr type local goto refuse
    meta nfproto ipv4 accept
    goto refuse
  }

  chain source_nat {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr ${formatCidr(plan.block)} oifname != ${veths} oifname != "lo" masquerade
  }
}
`;
  const policies = [...input.policies].map(
    ([index, policy]) =>
      renderPolicy(plan, index, policy) + renderRestoredPins(plan, index, input.pins.get(index) ?? []),
  );
  return base + policies.join('');
}

function flowRules(flows: FlowLimits): string[] {
  return [
    `add @flows { ip saddr ct count over ${flows.perSandbox} } ${refuseAs('too_many')}`,
    `add @all_flows { meta nfproto ct count over ${flows.all} } ${refuseAs('too_many')}`,
  ];
}

/** Whether connections of the sandbox are led through the egress proxy, and so have a chain that says which. */
function isRedirected({ rules, intercept }: SlotPolicy): boolean {
  return intercept === true || (rules !== undefined && rules.domains.list().length > 0);
}

/** Puts a policy in force for one slot. Its chains are reached only through the maps, which name them last. */
export function renderPolicy(plan: AddressPlan, index: number, policy: SlotPolicy): string {
  const { rules, intercept = false } = policy;
  const { hostAddress } = slotPlan(plan, index);
  const elements = (nets: EgressRules['publicNets']) =>
    nets.length === 0 ? '' : `elements = { ${nets.map(formatCidr).join(', ')} };`;
  const egress =
    rules === undefined
      ? ''
      : `
  set private_${index} { type ipv4_addr; flags interval; auto-merge; ${elements(rules.privateNets)} }
  set public_${index} { type ipv4_addr; flags interval; auto-merge; ${elements(rules.publicNets)} }
  set pinned_${index} { type ipv4_addr; flags timeout; size ${MAX_PINS_PER_SANDBOX}; }
  chain egress_${index} {
    ip daddr @private_${index} accept
    ip daddr @private ${refuseAs('private_network')}
    ip daddr @public_${index} accept
    ip daddr @pinned_${index} meta l4proto tcp ${refuseAs('not_allowed')}
    ip daddr @pinned_${index} udp dport 443 ${refuseAs('quic')}
    ip daddr @pinned_${index} accept
    ${refuseAs('not_allowed')}
  }`;
  // Everything that is refused anyway is left to the rules that refuse it.
  const redirected = [
    ...(rules === undefined ? [] : [`ip daddr @private_${index} return`]),
    'ip daddr @never return',
    'ip daddr @private return',
    'fib daddr type local return',
    ...(rules === undefined ? [] : [`ip daddr @public_${index} ${intercept ? 'goto to_proxy' : 'return'}`]),
    rules === undefined ? 'goto to_proxy' : `ip daddr @pinned_${index} goto to_proxy`,
  ];
  const redirect = !isRedirected(policy)
    ? ''
    : `
  chain redirect_${index} {
    ${redirected.join('\n    ')}
  }`;
  const table = `inet ${plan.table}`;
  return `
table ${table} {${egress}${redirect}
}
${egress === '' ? '' : `add element ${table} policies { ${hostAddress} : goto egress_${index} }`}
${redirect === '' ? '' : `add element ${table} redirects { ${hostAddress} : goto redirect_${index} }`}
`;
}

export function renderPolicyRemoval(plan: AddressPlan, index: number, policy: SlotPolicy): string {
  const table = `inet ${plan.table}`;
  const { hostAddress } = slotPlan(plan, index);
  const redirect = `
delete element ${table} redirects { ${hostAddress} }
delete chain ${table} redirect_${index}
`;
  const egress = `
delete element ${table} policies { ${hostAddress} }
delete chain ${table} egress_${index}
delete set ${table} private_${index}
delete set ${table} public_${index}
delete set ${table} pinned_${index}
`;
  return (isRedirected(policy) ? redirect : '') + (policy.rules === undefined ? '' : egress);
}

/**
 * Pins addresses for the times given. `add` alone leaves the time-out of an element that is there already as it
 * was, so each is added, deleted and added again; as one transaction it leaves no gap.
 */
export function renderPins(plan: AddressPlan, index: number, pins: readonly NetdPin[]): string {
  const set = `inet ${plan.table} pinned_${index}`;
  const addresses = pins.map((pin) => pin.address).join(', ');
  const timed = pins.map((pin) => `${pin.address} timeout ${pin.seconds}s`).join(', ');
  return `
add element ${set} { ${addresses} }
delete element ${set} { ${addresses} }
add element ${set} { ${timed} }
`;
}

function renderRestoredPins(plan: AddressPlan, index: number, pins: readonly NetdPin[]): string {
  if (pins.length === 0) return '';
  const timed = pins.map((pin) => `${pin.address} timeout ${pin.seconds}s`).join(', ');
  return `add element inet ${plan.table} pinned_${index} { ${timed} }\n`;
}
