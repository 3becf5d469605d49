import {
  clampLimit,
  AUDIT_CURSORS,
  cursorPosition,
  nextCursor,
  operations,
  type AuditEntry,
  type AuditList,
} from '@releap/contract';
import type { Planes } from '../../platform/http/planes.ts';
import { newestFirst } from '../../platform/newest-first.ts';
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
}

const LIST = newestFirst<AuditRow>('audit-list', {
  columns: `id, created_at, actor_kind, actor_id, actor_name, action, target_kind, target_id, project_id, details, ip,
            user_agent, outcome`,
  from: 'audit_log',
  where: 'org_id = $1',
  parameters: 1,
});

export function auditRoutes({ management }: Planes, { database }: Pick<ManagementContext, 'database'>): void {
  management.operation(operations.listAudit, async ({ params, query, caller }): Promise<AuditList> => {
    const org = await requireOrg(database.pool, caller, params.id, 'owner');
    const after = cursorPosition(AUDIT_CURSORS, query.cursor);
    const { rows, last } = await LIST.page(database.pool, [org.id], clampLimit(query.limit), after);
    return {
      entries: rows.map((row) => ({
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
      next_cursor: nextCursor(AUDIT_CURSORS, last),
    };
  });
}
