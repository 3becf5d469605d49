/** Operator operations on the stores of regions. */
import { operatorOperations } from '@releap/contract';
import type { Planes } from '../../platform/http/planes.ts';
import type { RegionStores } from './region-stores.ts';

export function regionStoreRoutes({ operator }: Planes, regionStores: RegionStores): void {
  operator.operation(operatorOperations.setRegionStore, ({ params, body }) =>
    regionStores.set(params.id, body),
  );
  operator.operation(operatorOperations.removeRegionStore, ({ params }) => regionStores.remove(params.id));
}
