import { ApiError, isUuid } from '@releap/contract';
import type { Database } from '@releap/database';
import type { PoolClient } from 'pg';
import type { Authenticator } from '../../platform/auth/authenticator.ts';
import type { Caller } from '../../platform/auth/caller.ts';
import type { EventBus } from '../../platform/events/event-bus.ts';
import { requireOrg, type OrgAccess } from './access.ts';
import { writeAudit } from './audit.ts';

export interface ManagementContext {
  database: Database;
  authenticator: Authenticator;
  events: EventBus;
}

/**
 * Runs an owner's operation in one transaction that locks the organization. The refused attempt of a member is audited
 * too.
 */
export async function asOwner<T>(
  { database }: Pick<ManagementContext, 'database'>,
  caller: Caller,
  orgId: string,
  what: { action: string; target: { kind: string; id: string } },
  work: (client: PoolClient, org: OrgAccess) => Promise<T>,
): Promise<T> {
  try {
    return await database.transaction(async (client) =>
      work(client, await requireOrg(client, caller, orgId, 'owner', { lock: true })),
    );
  } catch (error) {
    if (error instanceof ApiError && error.status === 403 && isUuid(orgId)) {
      await writeAudit(database.pool, { actor: caller, orgId, ...what, outcome: 'refused' });
    }
    throw error;
  }
}
