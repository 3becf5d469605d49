/** One slot: what it is, and the kernel objects it is made of. */
import { createHash } from 'node:crypto';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { type AddressPlan, GUEST, type SlotPlan, slotPlan } from './address-plan.ts';
import { ProcessError, run } from '../process/index.ts';
import { listLinks, listNetns, NETNS_DIR } from './host-state.ts';
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

/** Inside the namespace, in the order in which `ip -batch` does it. */
function renderInside(plan: AddressPlan, slot: SlotPlan): string {
  return [
    'link set lo up',
    `tuntap add dev ${GUEST.tap} mode tap user ${slot.uid} vnet_hdr`,
    `link set dev ${GUEST.tap} address ${GUEST.gatewayMac} mtu ${GUEST.mtu} up`,
    `address add ${GUEST.gatewayIp}/${GUEST.prefix} dev ${GUEST.tap}`,
    `neighbour add ${GUEST.ip} lladdr ${GUEST.mac} dev ${GUEST.tap} nud permanent`,
    `address add ${slot.hostAddress}/32 dev ${GUEST.uplink}`,
    `link set dev ${GUEST.uplink} up`,
    `route add ${plan.serviceAddress}/32 dev ${GUEST.uplink} scope link`,
    `route add default via ${plan.serviceAddress} dev ${GUEST.uplink}`,
    `neighbour add ${plan.serviceAddress} lladdr ${slot.vethMac} dev ${GUEST.uplink} nud permanent`,
    '',
  ].join('\n');
}

/** Packets to the name server that leave a sandbox in a second: each costs the runner some work. */
const DNS_PACKETS_PER_SECOND = 200;

/**
 * Inside the namespace: only frames that the guest can honestly send get in, the guest's address becomes the
 * slot's, and the namespace itself neither accepts nor opens connections (a VMM that was taken over is in it).
 */
function renderInsideRules(plan: AddressPlan, slot: SlotPlan): string {
  const { tap, uplink, ip, mac, gatewayIp } = GUEST;
  return `
table netdev guard {
  chain frames {
    type filter hook ingress device "${tap}" priority 0; policy drop;
    ether saddr ${mac} ether type arp accept
    ether saddr ${mac} ip saddr ${ip} accept
  }
}
table inet sandbox {
  chain refuse {
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }
  chain slot_dnat {
    type nat hook prerouting priority dstnat; policy accept;
    iifname "${tap}" ip daddr ${gatewayIp} udp dport 53 dnat ip to ${plan.serviceAddress}
    iifname "${tap}" ip daddr ${gatewayIp} tcp dport 53 dnat ip to ${plan.serviceAddress}
    iifname "${uplink}" ip daddr ${slot.hostAddress} dnat ip to ${ip}
  }
  chain slot_snat {
    type nat hook postrouting priority srcnat; policy accept;
    oifname "${uplink}" ip saddr ${ip} snat ip to ${slot.hostAddress}
  }
  chain slot_input {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    iifname "${tap}" meta nfproto ipv4 jump refuse
  }
  chain slot_output {
    type filter hook output priority filter; policy drop;
    meta nfproto ipv4 ct state established,related accept
  }
  chain slot_forward {
    type filter hook forward priority filter; policy drop;
    meta nfproto ipv6 drop
    ip daddr ${plan.serviceAddress} meta l4proto { tcp, udp } th dport 53 limit rate over ${DNS_PACKETS_PER_SECOND}/second burst ${2 * DNS_PACKETS_PER_SECOND} packets drop
    ct state established,related accept
    ct state invalid drop
    ct count over ${MAX_FLOWS_PER_SANDBOX} jump refuse
    iifname "${tap}" oifname "${uplink}" accept
    iifname "${uplink}" oifname "${tap}" ip saddr ${plan.serviceAddress} accept
  }
}
`;
}

/** Inside the namespace. `-e`: a kernel built or booted without IPv6 has no such keys. */
const INSIDE_SYSCTLS = [
  'net.ipv4.ip_forward=1',
  'net.ipv4.conf.all.rp_filter=1',
  'net.ipv4.conf.all.accept_redirects=0',
  'net.ipv4.conf.all.send_redirects=0',
  'net.ipv6.conf.all.disable_ipv6=1',
  'net.ipv6.conf.default.disable_ipv6=1',
];

/** Changes whenever a slot made by this code differs from one made by older code: such a spare is made anew. */
export function slotLayout(plan: AddressPlan): string {
  const sample = slotPlan(plan, 0);
  const text = [renderInside(plan, sample), renderInsideRules(plan, sample), ...INSIDE_SYSCTLS].join('\n');
  return createHash('sha256').update(text).digest('hex').slice(0, 16);
}

/** Makes slots. When it rejects, anything between nothing and everything may be there: `destroySlots` it. */
export async function createSlots(plan: AddressPlan, indexes: readonly number[]): Promise<void> {
  const slots = indexes.map((index) => slotPlan(plan, index));
  const ipv6 = await stat('/proc/sys/net/ipv6').then(
    () => true,
    () => false,
  );
  const outside = slots.flatMap((slot) => [
    `netns add ${slot.netns}`,
    `link add ${slot.veth} address ${slot.vethMac} mtu ${GUEST.mtu} type veth peer name ${GUEST.uplink} address ${slot.uplinkMac} mtu ${GUEST.mtu} netns ${slot.netns}`,
    ...(ipv6 ? [`link set dev ${slot.veth} addrgenmode none`] : []),
    `link set dev ${slot.veth} up`,
    `route add ${slot.hostAddress}/32 dev ${slot.veth} scope link src ${plan.serviceAddress}`,
    `neighbour add ${slot.hostAddress} lladdr ${slot.uplinkMac} dev ${slot.veth} nud permanent`,
  ]);
  await run('ip', ['-batch', '-'], { input: `${outside.join('\n')}\n`, deadlineMs: 60_000 });
  for (const slot of slots) {
    const enter = [`--net=${join(NETNS_DIR, slot.netns)}`, '--'];
    await run('nsenter', [...enter, 'sysctl', '-q', '-e', '-w', ...INSIDE_SYSCTLS]);
    await run('ip', ['-n', slot.netns, '-batch', '-'], { input: renderInside(plan, slot) });
    await run('nsenter', [...enter, 'nft', '-f', '-'], { input: renderInsideRules(plan, slot) });
  }
}

/** Removes slots whatever is left of them, and what the host still knows of their connections. */
export async function destroySlots(plan: AddressPlan, indexes: readonly number[]): Promise<void> {
  if (indexes.length === 0) return;
  const slots = indexes.map((index) => slotPlan(plan, index));
  const [links, spaces] = await Promise.all([listLinks(), listNetns()]);
  const commands = slots.flatMap((slot) => [
    ...(links.includes(slot.veth) ? [`link delete dev ${slot.veth}`] : []),
    ...(spaces.includes(slot.netns) ? [`netns delete ${slot.netns}`] : []),
  ]);
  if (commands.length > 0) {
    await run('ip', ['-force', '-batch', '-'], { input: `${commands.join('\n')}\n`, deadlineMs: 60_000 });
  }
  // Only now, with no way left to make new ones: a late packet of an old peer must not reach the next tenant.
  for (const slot of slots) {
    await Promise.all([
      forgetConnections(['-s', slot.hostAddress]),
      forgetConnections(['-d', slot.hostAddress]),
    ]);
  }
}

/** Exit code 1 of conntrack(8) also stands for 'no such entry', told only by its message. */
async function forgetConnections(filter: readonly string[]): Promise<void> {
  try {
    await run('conntrack', ['-D', ...filter]);
  } catch (error) {
    if (error instanceof ProcessError && /\b0 flow entries have been deleted/.test(error.stderr)) return;
    throw error;
  }
}
