/** `rlp net denied VM`: what a sandbox was not allowed to send. */
import type { EgressDenial } from '@releap/contract';
import { findSandbox, pages } from '@releap/sdk';
import { age, showTable } from '../output/table.ts';
import { openService } from '../service.ts';
import type { Context } from '../terminal.ts';

const REASONS: Readonly<Record<EgressDenial['reason'], string>> = {
  not_allowed: 'not in the egress policy',
  name_mismatch: 'the address was not resolved for this name',
  no_name: 'no name that a domain rule could match',
  unreadable: 'incomplete or malformed TLS or HTTP',
  quic: 'QUIC to a domain rule',
  rebinding: 'the name leads to a private address',
  host: 'an address of the host',
  sandbox: 'another sandbox',
  reserved: 'a loopback, metadata or multicast address',
  private_network: 'a private network',
  too_many: 'too many connections or queries',
  spoofed: 'a source that is not its own',
  ipv6: 'IPv6',
};

export async function denied(context: Context, vm: string): Promise<number> {
  const service = openService(context);
  const { id } = await findSandbox(service, vm);
  const list: EgressDenial[] = [];
  const found = pages((page) => service.api.listDeniedEgress({ params: { id }, ...page }), 'denied');
  for await (const denial of found) list.push(denial);
  return showTable(context, list, ['LAST', 'COUNT', 'PROTOCOL', 'TARGET', 'REASON'], row);
}

function row(denial: EgressDenial): string[] {
  const { last_at: last, count, protocol, reason } = denial;
  return [age(last), String(count), protocol, target(denial), REASONS[reason]];
}

function target({ address, port, name }: EgressDenial): string {
  const place = address === undefined ? undefined : `${address}${port === undefined ? '' : `:${port}`}`;
  if (place === undefined) return name ?? '-';
  return name === undefined ? place : `${name} (${place})`;
}
