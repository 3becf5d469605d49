import { operations, type RegionRecord } from '@releap/contract';
import type { Planes } from '../../platform/http/planes.ts';
import type { Regions } from './regions.ts';

export function regionRoutes({ workload }: Planes, { regions }: { regions: Regions }): void {
  workload.operation(operations.listRegions, async ({ query }): Promise<RegionRecord[]> => {
    const rows = await (query.include_disabled ? regions.all() : regions.active());
    return rows.map((region) => ({
      id: region.id,
      name: region.name,
      status: region.enabled ? 'active' : 'disabled',
      is_default: region.is_default,
      ...(region.toolbox_proxy_url === null ? {} : { toolbox_proxy_url: region.toolbox_proxy_url }),
      ...(region.global_region_id === null ? {} : { global_region_id: region.global_region_id }),
    }));
  });
  workload.operation(operations.listGlobalRegions, () => regions.globals());
}
