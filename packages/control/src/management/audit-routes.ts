import {
  clampLimit,
  decodeCursor,
  encodeCursor,
  operations,
  type AuditEntry,
  type AuditList,
} from '@releap/contract';
import { all, statement } from '@releap/database';
import type { Planes } from '../http/planes.ts';
import { requireOrg } from './access.ts';
import type { ManagementContext } from './context.ts';

interface AuditRow {
  id: string;
  created_at: Date;
  actor_kind: AuditEntry['actor']['kind'];
  actor_id: string | null;
  actor_name: string | null;
  action: string;
  target_kind: string;
  target_id: string;
  project_id: string | null;
  details: Record<string, unknown>;
  ip: string | null;
  user_agent: string | null;
  outcome: AuditEntry['outcome'];
  position: string;
}

/** $1 organization, $2 limit, $3 and $4 position or null */
const LIST = statement<AuditRow>(
  'audit-list',
  `select id, created_at, actor_kind, actor_id, actor_name, action, target_kind, target_id, project_id, details, ip,
          user_agent, outcome, to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as position
     from audit_log
    where org_id = $1 and ($3::timestamptz is null or (created_at, id) < ($3::timestamptz, $4::uuid))
    order by created_at desc, id desc limit $2`,
);

export function auditRoutes({ management }: Planes, { database }: Pick<ManagementContext, 'database'>): void {
  management.operation(operations.listAudit, async ({ params, query, caller }): Promise<AuditList> => {
    const org = await requireOrg(database.pool, caller, params.id, 'owner');
    const after = query.cursor === undefined ? null : decodeCursor('audit', query.cursor);
    const limit = clampLimit(query.limit);
    const values = [org.id, limit + 1, after?.created_at ?? null, after?.id ?? null];
    const rows = await all(database.pool, LIST, values);
    const page = rows.slice(0, limit);
    const last = rows.length > limit ? page.at(-1) : undefined;
    return {
      entries: page.map((row) => ({
        id: row.id,
        created_at: row.created_at.toISOString(),
        actor: { kind: row.actor_kind, id: row.actor_id, name: row.actor_name },
        action: row.action,
        target: { kind: row.target_kind, id: row.target_id },
        project_id: row.project_id,
        details: row.details,
        ip: row.ip,
        user_agent: row.user_agent,
        outcome: row.outcome,
      })),
      next_cursor:
        last === undefined ? null : encodeCursor('audit', { created_at: last.position, id: last.id }),
    };
  });
}
