import { newUuid } from '@releap/contract';
import { queryAll, statement, type Queryable } from '@releap/database';
import type { Caller } from '../../platform/auth/caller.ts';

/** The actor: a signed-in user, the operator, or the service itself. */
export type Actor = Caller | { operator: string } | 'system';

export interface AuditRecord {
  actor: Actor;
  orgId: string;
  projectId?: string;
  /** `<what>.<verb>`, as in `member.remove`. */
  action: string;
  target: { kind: string; id: string };
  /** Further details. Never a secret. */
  details?: Record<string, unknown>;
  outcome?: 'done' | 'refused';
}

const WRITE = statement(
  'audit-write',
  `insert into audit_log (id, org_id, project_id, actor_kind, actor_id, actor_name, action, target_kind, target_id,
     details, ip, user_agent, outcome)
   values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::jsonb, $11, $12, $13)`,
);

/** Writes an audit entry. Call it with the connection of the transaction that it records. */
export async function writeAudit(on: Queryable, record: AuditRecord): Promise<void> {
  const { actor } = record;
  const who =
    actor === 'system'
      ? { kind: 'system', id: null, name: null, ip: null, userAgent: null }
      : 'operator' in actor
        ? { kind: 'operator', id: null, name: actor.operator, ip: null, userAgent: null }
        : { kind: 'user', id: actor.userId, name: actor.email, ip: actor.ip, userAgent: actor.userAgent };
  await queryAll(on, WRITE, [
    newUuid(),
    record.orgId,
    record.projectId ?? null,
    who.kind,
    who.id,
    who.name,
    record.action,
    record.target.kind,
    record.target.id,
    JSON.stringify(record.details ?? {}),
    who.ip,
    who.userAgent,
    record.outcome ?? 'done',
  ]);
}
