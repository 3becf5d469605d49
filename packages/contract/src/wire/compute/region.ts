/** Regions, where sandboxes may be placed. */
import { Type, type Static } from 'typebox';
import type { ApiResource, Operation } from '../platform/operation.ts';

export const RegionRecord = Type.Object({
  id: Type.String({ description: 'Slug; the first part of the ids of its sandboxes.' }),
  name: Type.String(),
  status: Type.String({ description: '`active`; or `disabled`, with `include_disabled`.' }),
  is_default: Type.Boolean(),
  toolbox_proxy_url: Type.Optional(
    Type.String({
      description: 'Base URL of the toolbox of its sandboxes: `{toolbox_proxy_url}/{vm_id}/…`.',
    }),
  ),
  global_region_id: Type.Optional(Type.String()),
});
export type RegionRecord = Static<typeof RegionRecord>;

export const RegionList = Type.Array(RegionRecord);
export type RegionList = Static<typeof RegionList>;

export const GlobalRegionRecord = Type.Object({
  id: Type.String(),
  name: Type.String(),
  member_count: Type.Integer({ description: 'Active regions that belong to it.' }),
});
export type GlobalRegionRecord = Static<typeof GlobalRegionRecord>;

export const RegionListQuery = Type.Object({
  include_disabled: Type.Optional(
    Type.Boolean({
      default: false,
      description:
        'Also list those that take no new sandboxes: the sandboxes that they have are still reached there.',
    }),
  ),
});

export const regionOperations = {
  listRegions: {
    method: 'GET',
    path: '/regions',
    tag: 'Regions',
    summary: 'List the active regions',
    security: 'workload',
    query: RegionListQuery,
    success: {
      status: 200,
      response: { description: 'All of them; there are no pages.', schema: RegionList },
    },
    errors: {},
  },
  listGlobalRegions: {
    method: 'GET',
    path: '/global-regions',
    tag: 'Regions',
    summary: 'List the global regions',
    security: 'workload',
    success: {
      status: 200,
      response: { description: 'All of them; there are no pages.', schema: Type.Array(GlobalRegionRecord) },
    },
    errors: {},
  },
} as const satisfies Record<string, Operation>;

export const regionResource = {
  tags: { Regions: 'Where sandboxes may be placed.' },
  operations: regionOperations,
  schemas: { Region: RegionRecord },
} as const satisfies ApiResource;
