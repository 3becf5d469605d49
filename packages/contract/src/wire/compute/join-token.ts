/** The operator's tokens with which further machines join as hosts. */
import { Type, type Static } from 'typebox';
import type { Operation } from '../platform/operation.ts';
import { nextPage, OptionalPageQuery } from '../platform/paging.ts';

export const JOIN_TOKEN_LIMITS = {
  expiresS: { min: 60, max: 30 * 24 * 3600, default: 3600 },
  uses: { min: 1, max: 1000, default: 1 },
  nameChars: 128,
} as const;

/** Hosts that a list names of each token. */
export const JOIN_TOKEN_HOSTS_SHOWN = 10;

const { expiresS, uses, nameChars } = JOIN_TOKEN_LIMITS;

export const JoinTokenRequest = Type.Object({
  expires_in_s: Type.Optional(
    Type.Integer({
      minimum: expiresS.min,
      maximum: expiresS.max,
      default: expiresS.default,
      description: 'Seconds after which it is no longer accepted.',
    }),
  ),
  uses: Type.Optional(
    Type.Integer({
      minimum: uses.min,
      maximum: uses.max,
      default: uses.default,
      description: 'How many hosts may join with it.',
    }),
  ),
  name: Type.Optional(
    Type.String({
      pattern: '^[^\\u0000-\\u001f\\u007f]+$',
      maxLength: nameChars,
      expected: `1 to ${nameChars} characters, without control characters`,
      description: 'What it is for; shown in the list.',
    }),
  ),
});
export type JoinTokenRequest = Static<typeof JoinTokenRequest>;

export const JOIN_TOKEN_STATUSES = ['valid', 'used_up', 'expired', 'revoked'] as const;

const joinTokenFields = {
  id: Type.String({ description: 'UUID.' }),
  name: Type.Union([Type.String(), Type.Null()]),
  status: Type.Enum(JOIN_TOKEN_STATUSES, { description: 'Only a valid one is accepted.' }),
  uses: Type.Integer({ description: 'How many hosts may join with it in all.' }),
  uses_left: Type.Integer(),
  created_at: Type.String({ format: 'date-time' }),
  expires_at: Type.String({ format: 'date-time' }),
  revoked_at: Type.Union([Type.String({ format: 'date-time' }), Type.Null()]),
  hosts: Type.Array(Type.Object({ id: Type.String(), name: Type.Union([Type.String(), Type.Null()]) }), {
    description: `Hosts that have joined with it, without forgotten ones: the first ${JOIN_TOKEN_HOSTS_SHOWN}.`,
  }),
  host_count: Type.Integer({ description: 'How many they are.' }),
};

export const JoinTokenRecord = Type.Object(joinTokenFields);
export type JoinTokenRecord = Static<typeof JoinTokenRecord>;

export const JoinTokenCreated = Type.Object({
  ...joinTokenFields,
  token: Type.String({
    description: 'A secret, shown once: `RELEAP_JOIN_TOKEN` of the machines that join with it.',
  }),
});
export type JoinTokenCreated = Static<typeof JoinTokenCreated>;

export const JoinTokenList = Type.Object({ join_tokens: Type.Array(JoinTokenRecord), ...nextPage });
export type JoinTokenList = Static<typeof JoinTokenList>;

export const operatorJoinTokenOperations = {
  createJoinToken: {
    method: 'POST',
    path: '/operator/join-tokens',
    tag: 'Hosts',
    summary: 'Create a token with which further machines join as hosts',
    description: 'It is accepted until it expires, is used up or is revoked.',
    security: 'operator',
    body: JoinTokenRequest,
    success: { status: 201, response: { description: 'Created.', schema: JoinTokenCreated } },
    errors: { 400: 'A field is not valid.' },
  },
  listJoinTokens: {
    method: 'GET',
    path: '/operator/join-tokens',
    tag: 'Hosts',
    summary: 'List the join tokens, without their secrets',
    description: 'Those that are no longer accepted are listed too, until their retention ends.',
    security: 'operator',
    query: OptionalPageQuery,
    items: 'join_tokens',
    success: {
      status: 200,
      response: { description: 'One page, or all of them, newest first.', schema: JoinTokenList },
    },
    errors: {},
  },
  revokeJoinToken: {
    method: 'DELETE',
    path: '/operator/join-tokens/:id',
    tag: 'Hosts',
    summary: 'Revoke a join token',
    description: 'Hosts that have joined with it keep their own credentials. Idempotent.',
    security: 'operator',
    params: Type.Object({ id: Type.String() }),
    success: { status: 204, response: { description: 'Revoked.' } },
    errors: { 404: 'There is no such join token.' },
  },
} as const satisfies Record<string, Operation>;
