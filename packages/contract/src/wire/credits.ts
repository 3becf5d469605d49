/** Credits of an organization, for its members and for operators. */
import { Type, type Static } from 'typebox';
import { Amount } from './amount.ts';
import { CursorParam, nextPage } from './platform/paging.ts';

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
