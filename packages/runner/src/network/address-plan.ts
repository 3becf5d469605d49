/**
 * Which addresses and kernel names a service uses: pure functions of its home folder and of what the machine has
 * already. Two services on one machine never share a name (hash of the home) nor an address (block).
 */
import { createHash } from 'node:crypto';
import { type Cidr, cidrSize, formatCidr, formatIpv4, overlaps, parseCidr } from '@releap/contract/netd';

/** Shared address space of RFC 6598: no site uses it as its own, so it rarely meets an existing network. */
export const DEFAULT_RANGE = '100.64.0.0/10';
/** One service's block. The first addresses are the service's own, the rest belong to slots. */
export const BLOCK_BITS = 22;
const FIRST_SLOT_OFFSET = 4;
/** Most slots a block can hold: its size less our own addresses and the broadcast address. */
export const MAX_SLOTS = cidrSize(BLOCK_BITS) - FIRST_SLOT_OFFSET - 1;
/** Above every range that useradd, systemd and container tools hand out by default, below 2^31. */
export const DEFAULT_UID_BASE = 0x7000_0000;

/** Where the guest lives in every slot alike; a snapshot taken in one slot fits all others. */
export const GUEST = {
  ip: '172.16.0.2',
  prefix: 30,
  gatewayIp: '172.16.0.1',
  mac: '02:72:6c:00:00:02',
  gatewayMac: '02:72:6c:00:00:01',
  /** Of the gateway: where mounts of object stores send their requests. */
  storesPort: 7079,
  tap: 'tap0',
  uplink: 'up0',
  mtu: 1500,
} as const;

/** The names and addresses of one service. */
export interface AddressPlan {
  /** Eight hex digits that tell this service's kernel objects from others'. */
  tag: string;
  block: Cidr;
  /** Host-side address that is the slots' gateway and where their DNS questions arrive. */
  serviceAddress: string;
  /** Port-less bridge that carries `serviceAddress` and, by its route, claims the block. */
  bridge: string;
  /** nft table (family inet). */
  table: string;
  /** Slots are numbered from 0 to `slots - 1`. */
  slots: number;
  uidBase: number;
  /** The host's own addresses as the network was opened, which no sandbox reaches. */
  hostAddresses?: readonly string[];
}

/** The names and addresses of one slot. */
export interface SlotPlan {
  index: number;
  netns: string;
  /** Host end of the veth pair. */
  veth: string;
  /** MAC of the veth's host end, and of its end inside the namespace. */
  vethMac: string;
  uplinkMac: string;
  hostAddress: string;
  uid: number;
}

export function serviceTag(identity: string): string {
  return createHash('sha256').update(identity).digest('hex').slice(0, 8);
}

/** Interface names of this service's slots begin with this; the digits after it are the slot's index. */
export function vethPrefix(tag: string): string {
  return `rl${tag}v`;
}

export function netnsPrefix(tag: string): string {
  return `rl${tag}-`;
}

export function bridgeName(tag: string): string {
  return `rl${tag}br`;
}

/** Whether this is the bridge of any service of this machine. */
export function isBridgeName(name: string): boolean {
  return /^rl[0-9a-f]{8}br$/.test(name);
}

function tableName(tag: string): string {
  return `releap_${tag}`;
}

/** The index in a name made from `prefix`, or undefined when the name is of another program. */
export function indexInName(prefix: string, name: string): number | undefined {
  if (!name.startsWith(prefix)) return undefined;
  const digits = name.slice(prefix.length);
  return /^(?:0|[1-9]\d{0,3})$/.test(digits) ? Number(digits) : undefined;
}

/**
 * A block of `range` that overlaps nothing in `taken`. The search begins at a place that the tag decides, so that
 * two services that choose in the same moment hardly ever choose alike.
 */
export function chooseBlock(tag: string, range: string, taken: readonly Cidr[]): Cidr {
  const within = parseRange(range);
  const count = 2 ** (BLOCK_BITS - within.bits);
  const start = Number.parseInt(tag, 16) % count;
  const size = cidrSize(BLOCK_BITS);
  for (let step = 0; step < count; step += 1) {
    const block = { base: within.base + ((start + step) % count) * size, bits: BLOCK_BITS };
    if (!taken.some((other) => overlaps(block, other))) return block;
  }
  throw new Error(
    `no free /${BLOCK_BITS} block for sandbox addresses in ${range}: every one overlaps an address or a route of this machine; give another range of private addresses`,
  );
}

/** Checks a configured range: an IPv4 prefix that holds at least one block. */
export function parseRange(range: string): Cidr {
  const within = parseCidr(range);
  if (within === undefined || within.bits > BLOCK_BITS) {
    throw new Error(
      `sandbox address range ${JSON.stringify(range)} must be an IPv4 CIDR of /${BLOCK_BITS} or larger`,
    );
  }
  return within;
}

/** Puts the plan of a service together. `slots` is at most `MAX_SLOTS`. */
export function makeAddressPlan(tag: string, block: Cidr, slots: number, uidBase: number): AddressPlan {
  if (!Number.isInteger(slots) || slots < 1 || slots > MAX_SLOTS) {
    throw new Error(`number of network slots must be an integer from 1 to ${MAX_SLOTS}, not ${slots}`);
  }
  if (block.bits !== BLOCK_BITS) throw new Error(`block ${formatCidr(block)} must be a /${BLOCK_BITS}`);
  return {
    tag,
    block,
    serviceAddress: formatIpv4(block.base + 1),
    bridge: bridgeName(tag),
    table: tableName(tag),
    slots,
    uidBase,
  };
}

/** Names and addresses of slot `index`. */
export function slotPlan(plan: AddressPlan, index: number): SlotPlan {
  if (!Number.isInteger(index) || index < 0 || index >= MAX_SLOTS) {
    throw new Error(`slot index ${index} is not an integer from 0 to ${MAX_SLOTS - 1}`);
  }
  // 12 bits of block and 10 of slot: unique on the machine for the default range, and so is the uid.
  const number = blockNumber(plan.block) * cidrSize(BLOCK_BITS) + index;
  return {
    index,
    netns: `${netnsPrefix(plan.tag)}${index}`,
    veth: `${vethPrefix(plan.tag)}${index}`,
    vethMac: `02:72:6d:${hexBytes(number)}`,
    uplinkMac: `02:72:6e:${hexBytes(number)}`,
    hostAddress: formatIpv4(plan.block.base + FIRST_SLOT_OFFSET + index),
    uid: plan.uidBase + number,
  };
}

/** The user that the service's netd is: the last of the block's, which no slot has. */
export function netdUid(plan: AddressPlan): number {
  return plan.uidBase + blockNumber(plan.block) * cidrSize(BLOCK_BITS) + cidrSize(BLOCK_BITS) - 1;
}

/** The user that the service's interceptor is: the last but one, which no slot has either. */
export function interceptUid(plan: AddressPlan): number {
  return netdUid(plan) - 1;
}

/** The user that the service's store proxy is: the one before, which no slot has either. */
export function storesUid(plan: AddressPlan): number {
  return netdUid(plan) - 2;
}

/**
 * Mark of packets that are led to the egress proxy, another for each block. Its bits are none of those that kube-proxy,
 * Tailscale and Calico look at.
 */
export function redirectMark(block: number): number {
  return 0x3000 + block;
}

/** Mark of connections that the firewall has let through: those without it were made while its table was away. */
export function acceptedMark(block: number): number {
  return 0x2000 + block;
}

/** Number of the routing table in which every address is local. */
export function redirectTable(block: number): number {
  return 0x726c_0000 + block;
}

/** Tells the blocks of the services of one machine apart. */
export function blockNumber({ base }: Cidr): number {
  return Math.floor(base / cidrSize(BLOCK_BITS)) % 4096;
}

function hexBytes(number: number): string {
  return [16, 8, 0].map((shift) => ((number >>> shift) & 255).toString(16).padStart(2, '0')).join(':');
}
