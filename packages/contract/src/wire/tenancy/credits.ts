/** Credits of an organization, for its members and for operators; their amounts, without floating point. */
import { Type, type Static } from 'typebox';
import { UNKNOWN_ORGANIZATION } from '../platform/fields.ts';
import type { ApiResource } from '../platform/operation.ts';
import { CursorParam, nextPage } from '../platform/paging.ts';
import { OrgParams } from './organization.ts';

/**
 * Amounts are integers of nano-credits (10^-9) internally, and decimal strings on the wire and in the configuration. Digits after
 * the point of an amount: balances, ledger entries, grants.
 */
export const AMOUNT_DIGITS = 9;
/** Digits after the point of a price: it is multiplied by seconds, so it needs more digits than an amount. */
export const PRICE_DIGITS = 12;

/** Largest amount of one grant or limit: small enough that a balance, a 64 bit integer, can sum many. */
export const AMOUNT_MAX = 1_000_000_000n * 10n ** BigInt(AMOUNT_DIGITS);

const DECIMAL = /^([+-]?)(\d{1,18})(?:\.(\d{1,18}))?$/;

/**
 * Parses a decimal as an integer of its smallest units: `parseDecimal('1.5', 9)` is 1500000000n.
 * @returns null if it is not a decimal (exponents, blanks, a bare point) or has too many digits
 */
export function parseDecimal(text: string, digits: number): bigint | null {
  const match = DECIMAL.exec(text);
  if (match === null) return null;
  const [, sign, whole = '', part = ''] = match;
  const kept = part.replace(/0+$/, '');
  if (kept.length > digits) return null;
  const value = BigInt(whole) * 10n ** BigInt(digits) + BigInt(kept.padEnd(digits, '0') || '0');
  return sign === '-' ? -value : value;
}

/** The shortest decimal string of an integer of smallest units: no exponent, no trailing zeros, no `-0`. */
export function formatDecimal(value: bigint, digits: number): string {
  const unit = 10n ** BigInt(digits);
  const size = value < 0n ? -value : value;
  const part = (size % unit).toString().padStart(digits, '0').replace(/0+$/, '');
  return `${value < 0n ? '-' : ''}${size / unit}${part === '' ? '' : `.${part}`}`;
}

/** Nano-credits of a decimal string; null if it is invalid or finer than a nano-credit. */
export function parseAmount(text: string): bigint | null {
  return parseDecimal(text, AMOUNT_DIGITS);
}

/** The decimal string of nano-credits. */
export function formatAmount(nano: bigint): string {
  return formatDecimal(nano, AMOUNT_DIGITS);
}

/** A decimal string of credits in a response. */
export const Amount = Type.String({
  pattern: '^-?\\d+(\\.\\d{1,9})?$',
  expected: 'a decimal string of credits with at most 9 digits after the point, as "12.5"',
});

/** Ledger entries in `GET /orgs/:id/credits`. */
export const LEDGER_LIMITS = { default: 50, min: 1, max: 500 } as const;
/** Longest note of a grant, in characters. */
export const NOTE_CHARS = 500;

export const LEDGER_KINDS = ['usage', 'burst', 'grant', 'adjustment', 'deletion'] as const;
export const LedgerKind = Type.Enum(LEDGER_KINDS, {
  description:
    'usage: guaranteed cores, memory and GPUs of a sandbox over a time. burst: cores used above the guarantee. grant: ' +
    'credits from an operator. adjustment: a correction by an operator. deletion: a sandbox was deleted because the ' +
    'organization was beyond its overdraft limit; the amount is 0.',
});
export type LedgerKind = Static<typeof LedgerKind>;

export const LedgerEntry = Type.Object({
  id: Type.Integer({ description: 'Grows with time.' }),
  amount: Amount,
  kind: LedgerKind,
  vm_id: Type.Union([Type.String(), Type.Null()], { description: 'The sandbox that it concerns.' }),
  note: Type.Union([Type.String(), Type.Null()]),
  created_at: Type.String({ format: 'date-time' }),
});
export type LedgerEntry = Static<typeof LedgerEntry>;

export const CreditsRecord = Type.Object({
  org_id: Type.String(),
  balance: Amount,
  overdraft_limit: Type.Unsafe<Static<typeof Amount>>({
    ...Amount,
    description: 'How far below zero the balance may fall before running sandboxes are deleted.',
  }),
  overdraft_limit_source: Type.Enum(['global', 'organization'] as const, {
    description: '`global`: the same for all organizations. `organization`: set for this one.',
  }),
  enabled: Type.Boolean({
    description: 'Whether credits are enforced. If not, use is recorded and nothing is refused.',
  }),
  ledger: Type.Array(LedgerEntry, { description: 'The newest entries, newest first.' }),
  ...nextPage,
});
export type CreditsRecord = Static<typeof CreditsRecord>;

export const CreditsQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({
      default: LEDGER_LIMITS.default,
      description: `Ledger entries. Clamped to ${LEDGER_LIMITS.min}..${LEDGER_LIMITS.max}.`,
    }),
  ),
  cursor: Type.Optional(CursorParam),
});
export type CreditsQuery = Static<typeof CreditsQuery>;

export const GrantRequest = Type.Object({
  amount: Type.Unsafe<string>({
    ...Amount,
    description: 'Above 0 for a grant; an adjustment may be below 0.',
  }),
  note: Type.Optional(Type.Union([Type.String({ maxLength: NOTE_CHARS }), Type.Null()])),
  kind: Type.Optional(Type.Enum(['grant', 'adjustment'] as const, { default: 'grant' })),
});
export type GrantRequest = Static<typeof GrantRequest>;

export const GrantResponse = Type.Object({
  org_id: Type.String(),
  entry: LedgerEntry,
  /** After the grant. */
  balance: Amount,
});
export type GrantResponse = Static<typeof GrantResponse>;

/** The newest grants and adjustments, newest first. */
export const GrantList = Type.Object({
  org_id: Type.String(),
  balance: Amount,
  grants: Type.Array(LedgerEntry),
  ...nextPage,
});
export type GrantList = Static<typeof GrantList>;

export const OverdraftRequest = Type.Object({
  /** Null: the default limit. */
  overdraft_limit: Type.Union([Amount, Type.Null()]),
});
export type OverdraftRequest = Static<typeof OverdraftRequest>;

export const creditsOperations = {
  getCredits: {
    method: 'GET',
    path: '/orgs/:id/credits',
    tag: 'Organizations',
    summary: 'Read the balance of an organization and the newest entries of its ledger',
    description:
      'Amounts are decimal strings of credits. Use is negative, grants are positive, and the balance is the sum of the ' +
      'whole ledger. [billing.md](billing.md) says what is charged.',
    security: 'management',
    params: OrgParams,
    query: CreditsQuery,
    items: 'ledger',
    success: { status: 200, response: { description: 'The record.', schema: CreditsRecord } },
    errors: { 404: UNKNOWN_ORGANIZATION },
  },
} as const;

export const creditsResource = {
  tags: {},
  operations: creditsOperations,
  schemas: { Credits: CreditsRecord },
} as const satisfies ApiResource;
