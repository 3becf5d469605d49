/** What an `egress_policy` means: parsing, name matching, and which addresses no policy can open. Pure. */
import { type Cidr, contains, containsAddress, formatCidr, parseCidr } from './cidr.ts';
import { formatEgressEntry, parseEgressEntry } from './egress.ts';

/** As the sandbox was created with; see `SandboxSpec.egress`. */
export interface EgressPolicy {
  enabled: boolean;
  allow: string[];
}

/** A policy taken apart. Only sandboxes whose policy is enabled have one. */
export interface EgressRules {
  /** Entries that lie outside the blocked ranges, or are wider than them: they never open a blocked address. */
  publicNets: Cidr[];
  /** Entries inside a private network that the operator lets tenants open. */
  privateNets: Cidr[];
  domains: DomainSet;
  /** Entries without effect: loopback, link-local (metadata), multicast, private networks that are not for tenants. */
  ineffective: string[];
}

/**
 * Not reachable from any sandbox, whatever a policy says. 169.254/16 holds the clouds' metadata services; Azure's and
 * Alibaba's have addresses of their own, of which Azure's is a public one.
 */
export const NEVER_REACHABLE = cidrs([
  '0.0.0.0/8',
  '100.100.100.200/32',
  '127.0.0.0/8',
  '168.63.129.16/32',
  '169.254.0.0/16',
  '224.0.0.0/4',
  '240.0.0.0/4',
]);

/** Private and special ranges (RFC 6890): blocked unless the operator opens them and a policy names them. */
export const PRIVATE_RANGES = cidrs([
  '10.0.0.0/8',
  '100.64.0.0/10',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
]);

/** Exact names and `*.` wildcards. A wildcard matches every name below, at any depth, not the name itself. */
export class DomainSet {
  readonly #exact = new Set<string>();
  readonly #below = new Set<string>();

  /** `name` is normalized already. */
  add(name: string, wildcard: boolean): void {
    (wildcard ? this.#below : this.#exact).add(name);
  }

  /** @param entries normalized names and `*.` wildcards, as `list` gives them */
  static of(entries: readonly string[]): DomainSet {
    const set = new DomainSet();
    for (const entry of entries) {
      const wildcard = entry.startsWith('*.');
      set.add(wildcard ? entry.slice(2) : entry, wildcard);
    }
    return set;
  }

  list(): string[] {
    return [...this.#exact, ...[...this.#below].map((name) => `*.${name}`)];
  }

  /** `name` is normalized already. */
  matches(name: string): boolean {
    if (this.#exact.has(name)) return true;
    for (let dot = name.indexOf('.'); dot !== -1; dot = name.indexOf('.', dot + 1)) {
      if (this.#below.has(name.slice(dot + 1))) return true;
    }
    return false;
  }
}

/**
 * A domain name in lower case without the root dot, or undefined when it is none that we resolve: 1 to 253
 * characters, labels of 1 to 63 letters, digits, `-` and `_` (RFC 1035 section 2.3.4, and `_` of RFC 8552).
 */
export function normalizeName(name: string): string | undefined {
  const plain = (name.endsWith('.') ? name.slice(0, -1) : name).toLowerCase();
  if (plain.length > 253) return undefined;
  return /^[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*$/.test(plain) ? plain : undefined;
}

/**
 * The rules of a policy, or undefined when it restricts nothing.
 * @param openable private networks that the operator lets tenants open
 * @throws on an entry that the contract does not know
 */
export function parseEgress(
  policy: EgressPolicy | undefined,
  openable: readonly Cidr[] = [],
): EgressRules | undefined {
  if (policy === undefined || !policy.enabled) return undefined;
  const rules: EgressRules = {
    publicNets: [],
    privateNets: [],
    domains: new DomainSet(),
    ineffective: [],
  };
  for (const text of policy.allow) {
    const entry = parseEgressEntry(text);
    if (entry.type === 'domain') {
      rules.domains.add(entry.domain, entry.wildcard);
      continue;
    }
    const cidr = parseCidr(formatEgressEntry(entry));
    if (cidr === undefined) throw new Error(`not an IPv4 network: ${text}`);
    const within = (ranges: readonly Cidr[]): boolean => ranges.some((range) => contains(range, cidr));
    const isPrivate = within(PRIVATE_RANGES);
    if (within(NEVER_REACHABLE) || (isPrivate && !within(openable))) rules.ineffective.push(formatCidr(cidr));
    else if (isPrivate) rules.privateNets.push(cidr);
    else rules.publicNets.push(cidr);
  }
  return rules;
}

/** What may be done with an address that a name server gave for a name. */
export type AnswerVerdict = 'refuse' | 'reachable' | 'pin';

/**
 * Judges an address in a DNS answer. A public name that answers with a private address is refused (DNS rebinding)
 * unless the policy names that private network. `pin` means that the firewall must be told of the address.
 */
export function judgeAnswer(rules: EgressRules | undefined, address: number): AnswerVerdict {
  const inside = (nets: readonly Cidr[]) => nets.some((net) => containsAddress(net, address));
  if (inside(NEVER_REACHABLE)) return 'refuse';
  if (inside(PRIVATE_RANGES))
    return rules !== undefined && inside(rules.privateNets) ? 'reachable' : 'refuse';
  return rules === undefined || inside(rules.publicNets) ? 'reachable' : 'pin';
}

/** @throws on what is no network */
export function cidrs(list: readonly string[]): readonly Cidr[] {
  return list.map((text) => {
    const cidr = parseCidr(text);
    if (cidr === undefined) throw new Error(`not a CIDR: ${text}`);
    return cidr;
  });
}
