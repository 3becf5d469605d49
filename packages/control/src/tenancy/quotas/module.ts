import type { Database } from '@releap/database';
import { operations, operatorOperations } from '@releap/contract';
import { requireOrg, requireOrgOfOperator } from '../management/access.ts';
import { writeAudit } from '../management/audit.ts';
import type { Module } from '../../platform/module.ts';
import { readQuotas, setQuotas } from './quotas.ts';

export function quotasModule({ database }: { database: Database }): Module {
  return {
    name: 'quotas',
    routes({ management, operator }) {
      management.operation(operations.getQuotas, async ({ params, caller }) =>
        readQuotas(database, (await requireOrg(database.pool, caller, params.id)).id),
      );
      operator.operation(operatorOperations.readQuotas, async ({ params }) =>
        readQuotas(database, await requireOrgOfOperator(database.pool, params.id)),
      );
      operator.operation(operatorOperations.setQuotas, async ({ params, body }) => {
        const orgId = await requireOrgOfOperator(database.pool, params.id);
        await database.transaction(async (client) => {
          await setQuotas(client, orgId, body);
          const target = { kind: 'organization', id: orgId };
          const actor = { operator: 'operator' };
          await writeAudit(client, { actor, orgId, action: 'quotas.set', target, details: { ...body } });
        });
        return readQuotas(database, orgId);
      });
    },
  };
}
