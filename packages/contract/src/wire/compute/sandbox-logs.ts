/** What a sandbox has written, and what it was not allowed to send. */
import { Type, type Static } from 'typebox';
import { HOST_STARTING, UNKNOWN_ID } from '../platform/fields.ts';
import type { Operation } from '../platform/operation.ts';
import { cursorKind, CursorParam, LimitParam, NextCursor } from '../platform/paging.ts';
import { SandboxParams } from './sandbox-record.ts';

export const LogQuery = Type.Object({
  follow: Type.Optional(
    Type.Boolean({
      default: false,
      description: 'Keep the response open and send new output, until the sandbox ends.',
    }),
  ),
});
export type LogQuery = Static<typeof LogQuery>;

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

/** A log as text. */
const log = (description: string) =>
  ({
    method: 'GET',
    tag: 'Sandboxes',
    security: 'workload',
    params: SandboxParams,
    query: LogQuery,
    success: { status: 200, response: { description, schema: Type.String(), contentType: 'text/plain' } },
    codes: ['log_not_found'],
    errors: {
      404: `${UNKNOWN_ID} Or it has ended without a log, or it is not yet placed on a machine.`,
      502: 'The machine that has the log did not respond.',
      503: HOST_STARTING,
    },
  }) as const;

export const sandboxLogOperations = {
  getConsoleLog: { ...log('The log.'), path: '/vms/:id/logs', summary: 'Read the console log' },
  getEntrypointLog: {
    ...log('The output.'),
    path: '/vms/:id/entrypoint-logs',
    summary: "Read the output of the image's entrypoint",
  },
  listDeniedEgress: {
    method: 'GET',
    path: '/vms/:id/egress/denied',
    tag: 'Sandboxes',
    summary: 'List what the sandbox was not allowed to send, newest first',
    description:
      'Connections, packets and DNS queries that its egress policy or the rules of its host denied, aggregated by ' +
      'destination and reason. The log is kept by the host with the logs of the sandbox, also when it is stopped, and is bounded: ' +
      '[network.md](network.md#denied-connections) explains the reasons and the bounds.',
    security: 'workload',
    params: SandboxParams,
    query: EgressDenialQuery,
    items: 'denied',
    success: { status: 200, response: { description: 'One page.', schema: EgressDenialList } },
    codes: ['wrong_state'],
    errors: {
      400: 'The cursor is malformed.',
      404: UNKNOWN_ID,
      409: 'No host has a log: the sandbox has not been placed, or its logs were removed.',
      502: 'The machine of the sandbox did not respond.',
      503: HOST_STARTING,
    },
  },
} as const satisfies Record<string, Operation>;
