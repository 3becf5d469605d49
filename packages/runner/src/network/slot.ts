/** One slot: what it is, and the kernel objects it is made of. */
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import type { HostdService } from '../host/hostd-service.ts';
import { type Cidr, formatCidr, NEVER_REACHABLE, PRIVATE_RANGES } from '@releap/contract/netd';
import { type AddressPlan, GUEST, type SlotPlan, slotPlan } from './address-plan.ts';
import { allSettled } from '../machine/all-settled.ts';
import { refuseAs, renderInsideDenials } from './denial-rules.ts';
import { run } from '../process/index.ts';
import { NETNS_DIR } from './host-state.ts';
import { MAX_FLOWS_PER_SANDBOX } from './flow-limits.ts';

/** A network of its own for one sandbox. */
export interface Slot {
  index: number;
  /** Unprivileged user that owns the tap; no other slot on this machine has it. */
  uid: number;
  /** Name and path of the network namespace in which the VMM runs. */
  netns: string;
  netnsPath: string;
  /** Persistent single-queue tap inside the namespace. */
  tap: string;
  /** The guest's address, the same in every slot. */
  mac: string;
  guestIp: string;
  guestPrefix: number;
  gatewayIp: string;
  mtu: number;
  /** Name servers for the guest's resolv.conf. */
  dns: string[];
  /** The guest as the host sees it. */
  hostAddress: string;
}

export function describeSlot(plan: AddressPlan, index: number): Slot {
  const { netns, uid, hostAddress } = slotPlan(plan, index);
  return {
    index,
    uid,
    netns,
    netnsPath: join(NETNS_DIR, netns),
    tap: GUEST.tap,
    mac: GUEST.mac,
    guestIp: GUEST.ip,
    guestPrefix: GUEST.prefix,
    gatewayIp: GUEST.gatewayIp,
    mtu: GUEST.mtu,
    dns: [GUEST.gatewayIp],
    hostAddress,
  };
}

/** Packets to the name server that leave a sandbox in a second: each costs netd some work. */
const DNS_PACKETS_PER_SECOND = 200;

/**
 * Inside the namespace: only frames that the guest can honestly send get in, the guest's address becomes the
 * slot's, and the namespace itself neither accepts nor opens connections (a VMM that was taken over is in it). What is denied
 * is counted by chains that denied-log.ts knows. The same for all slots, and without sets but those that packets fill: hostd has nft
 * read them once and copies what the kernel made of them.
 *
 * What no sandbox may reach is refused here as well as by the host's table: that one is away for a moment when another program
 * flushes the host's rules.
 */
function renderInsideRules(plan: AddressPlan): string {
  const { tap, uplink, ip, mac, gatewayIp } = GUEST;
  const denyTo = (to: Cidr | string, reason: Parameters<typeof refuseAs>[0]): string =>
    `ip daddr ${typeof to === 'string' ? to : formatCidr(to)} ${refuseAs(reason, 'deny')}`;
  const reserved = [
    denyTo(plan.serviceAddress, 'host'),
    denyTo(plan.block, 'sandbox'),
    ...(plan.hostAddresses ?? []).map((address) => denyTo(address, 'host')),
    ...NEVER_REACHABLE.map((range) => denyTo(range, 'reserved')),
  ];
  return `
table netdev guard {
  chain spoofed_mac { counter drop; }
  chain spoofed_arp { counter drop; }
  chain spoofed_source { counter drop; }
  chain ipv6 { counter drop; }
  chain frames {
    type filter hook ingress device "${tap}" priority 0; policy drop;
    ether saddr ${mac} ip saddr ${ip} accept
    ether saddr ${mac} ether type arp arp saddr ether ${mac} arp saddr ip ${ip} accept
    ether saddr ${mac} ether type arp arp saddr ether ${mac} arp saddr ip 0.0.0.0 accept
    ether saddr != ${mac} goto spoofed_mac
    ip6 daddr ff00::/8 drop
    ether type ip6 goto ipv6
    ether type arp goto spoofed_arp
    goto spoofed_source
  }
}
table inet sandbox {
  chain refuse {
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }
${renderInsideDenials()}
  chain deny {
    jump count_denied
    goto refuse
  }
  chain to_gateway {
    counter
    goto refuse
  }
  chain too_many_flows {
    counter
    goto refuse
  }
  chain too_many_queries {
    counter drop
  }
  chain questions {
    limit rate over ${DNS_PACKETS_PER_SECOND}/second burst ${2 * DNS_PACKETS_PER_SECOND} packets goto too_many_queries
  }
  chain slot_dnat {
    type nat hook prerouting priority dstnat; policy accept;
    iifname "${tap}" ip daddr ${gatewayIp} udp dport 53 dnat ip to ${plan.serviceAddress}
    iifname "${tap}" ip daddr ${gatewayIp} tcp dport 53 dnat ip to ${plan.serviceAddress}
    iifname "${tap}" ip daddr ${gatewayIp} tcp dport ${GUEST.storesPort} dnat ip to ${plan.serviceAddress}
    iifname "${uplink}" dnat ip to ${ip}
  }
  chain slot_snat {
    type nat hook postrouting priority srcnat; policy accept;
    oifname "${uplink}" ip saddr ${ip} masquerade
  }
  chain slot_input {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    iifname "${tap}" meta nfproto ipv4 goto to_gateway
  }
  chain slot_output {
    type filter hook output priority filter; policy drop;
    meta nfproto ipv4 ct state established,related accept
  }
  chain reserved {
    ip daddr ${plan.serviceAddress} udp dport 53 return
    ip daddr ${plan.serviceAddress} tcp dport 53 return
    ip daddr ${plan.serviceAddress} tcp dport ${GUEST.storesPort} return
    ${reserved.join('\n    ')}
  }
  chain ${PRIVATE_CHAIN} {
    ip daddr ${plan.serviceAddress} return
    ${PRIVATE_RANGES.map((range) => denyTo(range, 'private_network')).join('\n    ')}
  }
  chain slot_forward {
    type filter hook forward priority filter; policy drop;
    meta nfproto ipv6 drop
    ip daddr ${plan.serviceAddress} udp dport 53 jump questions
    ip daddr ${plan.serviceAddress} tcp dport 53 jump questions
    ct state established,related accept
    ct state invalid drop
    iifname "${tap}" jump reserved
    iifname "${tap}" jump ${PRIVATE_CHAIN}
    ct count over ${MAX_FLOWS_PER_SANDBOX} goto too_many_flows
    iifname "${tap}" oifname "${uplink}" accept
    iifname "${uplink}" oifname "${tap}" ip saddr ${plan.serviceAddress} accept
  }
}
`;
}

/** The chain that refuses private networks. */
const PRIVATE_CHAIN = 'private_networks';

/** Lets the sandbox of a slot reach these private networks. */
export async function permitPrivate(
  plan: AddressPlan,
  index: number,
  networks: readonly Cidr[],
): Promise<void> {
  if (networks.length === 0) return;
  const { netns } = slotPlan(plan, index);
  const rules = networks.map(
    (net) => `insert rule inet sandbox ${PRIVATE_CHAIN} ip daddr ${formatCidr(net)} return\n`,
  );
  await run('nsenter', [`--net=${join(NETNS_DIR, netns)}`, '--', 'nft', '-f', '-'], {
    input: rules.join(''),
  });
}

/** Switches of the namespace, as paths below /proc/sys/net. A kernel that was built or booted without IPv6 has not all of them. */
const INSIDE_SYSCTLS = [
  { name: 'ipv4/ip_forward', value: '1' },
  { name: 'ipv4/conf/all/rp_filter', value: '1' },
  { name: 'ipv4/conf/all/accept_redirects', value: '0' },
  { name: 'ipv4/conf/all/send_redirects', value: '0' },
  { name: 'ipv6/conf/all/disable_ipv6', value: '1' },
  { name: 'ipv6/conf/default/disable_ipv6', value: '1' },
];

/** What hostd makes a slot of; host/internal/slot says what each field is. */
function slotRequest(plan: AddressPlan, slot: SlotPlan): object {
  return {
    netns: slot.netns,
    veth: slot.veth,
    veth_mac: slot.vethMac,
    uplink: GUEST.uplink,
    uplink_mac: slot.uplinkMac,
    host_address: slot.hostAddress,
    service_address: plan.serviceAddress,
    tap: GUEST.tap,
    tap_mac: GUEST.gatewayMac,
    uid: slot.uid,
    gateway: `${GUEST.gatewayIp}/${GUEST.prefix}`,
    guest_ip: GUEST.ip,
    guest_mac: GUEST.mac,
    mtu: GUEST.mtu,
    sysctls: INSIDE_SYSCTLS,
    rules: renderInsideRules(plan),
  };
}

/** Raised when hostd makes something else of the same request. */
const LAYOUT_VERSION = 2;

/** Changes whenever a slot made by this code differs from one made by older code: such a spare is made again. */
export function slotLayout(plan: AddressPlan): string {
  const text = JSON.stringify([LAYOUT_VERSION, slotRequest(plan, slotPlan(plan, 0))]);
  return createHash('sha256').update(text).digest('hex').slice(0, 16);
}

/** Makes slots. When it rejects, anything between nothing and everything may be there: `destroySlots` it. */
export async function createSlots(
  hostd: HostdService,
  plan: AddressPlan,
  indexes: readonly number[],
): Promise<void> {
  const slots = indexes.map((index) => slotPlan(plan, index));
  await allSettled(slots.map((slot) => hostd.request({ create_slot: slotRequest(plan, slot) }, false)));
}

/** Removes slots whatever is left of them, and what the host still knows of their connections. */
export async function destroySlots(
  hostd: HostdService,
  plan: AddressPlan,
  indexes: readonly number[],
): Promise<void> {
  const slots = indexes.map((index) => slotPlan(plan, index));
  await allSettled(
    slots.map(({ netns, veth, hostAddress }) =>
      hostd.request({ destroy_slot: { netns, veth, host_address: hostAddress } }, true),
    ),
  );
}
