/** The operator's audit log. */
import { Type, type Static } from 'typebox';
import { CursorParam, nextPage } from './platform/paging.ts';

export const OPERATOR_AUDIT_LIMITS = { min: 1, max: 1000, default: 100 } as const;

export const OperatorAuditQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({
      default: OPERATOR_AUDIT_LIMITS.default,
      description: `Clamped to ${OPERATOR_AUDIT_LIMITS.min}..${OPERATOR_AUDIT_LIMITS.max}.`,
    }),
  ),
  cursor: Type.Optional(CursorParam),
  before: Type.Optional(
    Type.String({
      format: 'date-time',
      description: 'Only calls before this time, as `created_at` of an entry.',
    }),
  ),
});
export type OperatorAuditQuery = Static<typeof OperatorAuditQuery>;

export const OperatorAuditEntry = Type.Object({
  id: Type.String(),
  created_at: Type.String({ format: 'date-time' }),
  actor: Type.Literal('operator'),
  operation: Type.String({ description: 'Name of the operation.' }),
  subject: Type.Union([Type.String(), Type.Null()], { description: 'The host or organization.' }),
  request: Type.Object({}, { additionalProperties: true, description: 'Query and body.' }),
  ip: Type.Union([Type.String(), Type.Null()]),
  request_id: Type.Union([Type.String(), Type.Null()]),
  outcome: Type.Union([Type.Enum(['done', 'refused', 'failed'] as const), Type.Null()], {
    description: 'Null: it is in progress, or the server died.',
  }),
  error: Type.Union([Type.String(), Type.Null()]),
});
export type OperatorAuditEntry = Static<typeof OperatorAuditEntry>;

export const OperatorAuditList = Type.Object({ entries: Type.Array(OperatorAuditEntry), ...nextPage });
export type OperatorAuditList = Static<typeof OperatorAuditList>;
