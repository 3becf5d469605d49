/** Operator operations on regions. */
import { isUuid, notFound, operatorOperations, quote } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { setDefaultRegion } from '../../tenancy/management/default-regions.ts';
import { createGlobalRegion, deleteGlobalRegion, renameGlobalRegion } from './global-regions.ts';
import {
  createRegion,
  deleteRegion,
  listRegions,
  requireRegionOrGroup,
  updateRegion,
} from './operator-regions.ts';

export function operatorRegionRoutes({ operator }: Planes, { database }: { database: Database }): void {
  operator.operation(operatorOperations.listAllRegions, () => listRegions(database.pool));
  operator.operation(operatorOperations.createRegion, ({ body }) => createRegion(database, body));
  operator.operation(operatorOperations.updateRegion, ({ params, body }) =>
    updateRegion(database, params.id, body),
  );
  operator.operation(operatorOperations.deleteRegion, ({ params }) => deleteRegion(database, params.id));

  operator.operation(operatorOperations.createGlobalRegion, ({ body }) =>
    createGlobalRegion(database, body.id, body.name),
  );
  operator.operation(operatorOperations.updateGlobalRegion, ({ params, body }) =>
    renameGlobalRegion(database, params.id, body.name),
  );
  operator.operation(operatorOperations.deleteGlobalRegion, ({ params }) =>
    deleteGlobalRegion(database, params.id),
  );

  const setDefault = async (kind: 'organization' | 'project', id: string, region: string | null) => {
    if (region !== null) await requireRegionOrGroup(database.pool, region);
    if (!isUuid(id) || !(await setDefaultRegion(database, kind, id, region)))
      throw notFound(`${kind} ${quote(id)} not found`, `${kind}_not_found`);
    return { id, region };
  };
  operator.operation(operatorOperations.setDefaultRegionOfOrg, ({ params, body }) =>
    setDefault('organization', params.id, body.region),
  );
  operator.operation(operatorOperations.setDefaultRegionOfProject, ({ params, body }) =>
    setDefault('project', params.id, body.region),
  );
}
