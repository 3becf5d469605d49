import {
  containsAddress,
  type EgressRules,
  normalizeName,
  type NetdDenial,
  parseIpv4,
} from '@releap/contract/netd';
import type { FirstBytes } from './first-bytes.ts';

/** A sandbox as the egress proxy knows it. */
export interface EgressClient {
  vmId: string;
  /** Absent: it may connect everywhere, and is here for what may be intercepted. */
  rules?: EgressRules | undefined;
  /** Whether its name server gave it this address for this name, or would give it now. */
  resolves(name: string, address: string): Promise<boolean>;
}

export type Decision =
  /** `host`: known, and checked to be at this address. `only`: nothing but it is allowed there. */
  | { allow: true; host?: string; only?: boolean }
  | { allow: false; reason: NetdDenial['reason']; name?: string };

/**
 * Whether a connection to an address that the firewall lets through may be made. A domain rule matches where the name that the
 * client sends is allowed and this sandbox resolved it to this address; what names nothing (neither TLS nor HTTP) is judged by
 * the firewall's addresses alone.
 */
export async function decide(client: EgressClient, address: string, first: FirstBytes): Promise<Decision> {
  const { rules } = client;
  const number = parseIpv4(address);
  const byAddress =
    rules === undefined ||
    (number !== undefined && rules.publicNets.some((net) => containsAddress(net, number)));
  if (first.type === 'other' || first.type === 'more') return { allow: true };
  if (first.type === 'invalid') return byAddress ? { allow: true } : { allow: false, reason: 'unreadable' };
  const name = nameOf(first.host);
  if (name === undefined) {
    return byAddress
      ? { allow: true }
      : { allow: false, reason: 'no_name', ...(first.host === undefined ? {} : { name: shown(first.host) }) };
  }
  if (!byAddress && !rules.domains.matches(name)) return { allow: false, reason: 'not_allowed', name };
  if (await client.resolves(name, address)) return { allow: true, host: name, only: !byAddress };
  return byAddress ? { allow: true } : { allow: false, reason: 'name_mismatch', name };
}

/** Undefined for what no domain rule can match, as an address. */
function nameOf(host: string | undefined): string | undefined {
  const name = host === undefined ? undefined : normalizeName(host);
  return name === undefined || /(?:^|\.)\d+$/.test(name) ? undefined : name;
}

/** A guest sends what it likes. */
function shown(host: string): string {
  return host.replace(/[^!-~]/g, '?').slice(0, 255);
}
