/** What a sandbox was not allowed to send: the log of denied connections. */
import { Type, type Static } from 'typebox';
import { LimitParam, CursorParam, NextCursor, cursorKind } from './platform/paging.ts';

/** Why something was denied. docs/network.md explains each. */
export const DENIAL_REASONS = [
  'not_allowed',
  'name_mismatch',
  'no_name',
  'unreadable',
  'quic',
  'rebinding',
  'host',
  'sandbox',
  'reserved',
  'private_network',
  'too_many',
  'spoofed',
  'ipv6',
] as const;
export type DenialReason = (typeof DENIAL_REASONS)[number];

export const EgressDenial = Type.Object({
  protocol: Type.String({
    maxLength: 32,
    description:
      '`tcp`, `udp`, `icmp` or another IP protocol, `dns` for a name that was not resolved, `ethernet` for frames that no address was read of.',
  }),
  address: Type.Optional(Type.String({ maxLength: 45, description: 'Destination address.' })),
  port: Type.Optional(Type.Integer({ minimum: 0, maximum: 65_535, description: 'Destination port.' })),
  name: Type.Optional(
    Type.String({
      maxLength: 255,
      description: 'The name that was asked for or sent: DNS, SNI or HTTP Host.',
    }),
  ),
  reason: Type.Enum(DENIAL_REASONS, { description: 'The rule that denied it.' }),
  count: Type.Integer({ minimum: 1, description: 'How often: packets, queries or connections.' }),
  first_at: Type.Optional(
    Type.String({ format: 'date-time', description: 'Absent where only the number is known.' }),
  ),
  last_at: Type.String({
    format: 'date-time',
    description: 'The last time; to the second for `tcp` and `udp`.',
  }),
});
export type EgressDenial = Static<typeof EgressDenial>;

export const EgressDenialQuery = Type.Object({
  limit: Type.Optional(LimitParam),
  cursor: Type.Optional(CursorParam),
});
export type EgressDenialQuery = Static<typeof EgressDenialQuery>;

export const EgressDenialList = Type.Object({ denied: Type.Array(EgressDenial), next_cursor: NextCursor });
export type EgressDenialList = Static<typeof EgressDenialList>;

export const EGRESS_DENIAL_CURSORS = cursorKind(12);
