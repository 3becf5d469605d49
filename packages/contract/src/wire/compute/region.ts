/** Regions, where sandboxes may be placed, and the classes of their hardware. */
import { Type, type Static } from 'typebox';
import type { ApiResource, Operation } from '../platform/operation.ts';

export const RegionRecord = Type.Object({
  id: Type.String({ description: 'Slug; the first part of the ids of its sandboxes.' }),
  name: Type.String(),
  status: Type.String({ description: 'Always `active` in lists.' }),
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

/** One class of CPU, network or disk; `POST /vms` takes its slug as a minimum. */
export const HardwareClassRecord = Type.Object({
  slug: Type.String(),
  name: Type.String(),
  tier: Type.Integer({ description: '1 is the lowest. CPU tiers are counted per architecture.' }),
  arch: Type.Optional(Type.String({ description: 'Architecture; CPU types only.' })),
});
export type HardwareClassRecord = Static<typeof HardwareClassRecord>;

export const regionOperations = {
  listRegions: {
    method: 'GET',
    path: '/regions',
    tag: 'Regions',
    summary: 'List the active regions',
    security: 'workload',
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
  listCpuTypes: {
    method: 'GET',
    path: '/cpu-types',
    tag: 'Regions',
    summary: 'List the values of cpu_type',
    security: 'workload',
    success: {
      status: 200,
      response: { description: 'By architecture and tier.', schema: Type.Array(HardwareClassRecord) },
    },
    errors: {},
  },
  listNetworkClasses: {
    method: 'GET',
    path: '/network-classes',
    tag: 'Regions',
    summary: 'List the values of network_class',
    security: 'workload',
    success: {
      status: 200,
      response: { description: 'By tier.', schema: Type.Array(HardwareClassRecord) },
    },
    errors: {},
  },
  listDiskClasses: {
    method: 'GET',
    path: '/disk-classes',
    tag: 'Regions',
    summary: 'List the values of disk_class',
    security: 'workload',
    success: {
      status: 200,
      response: { description: 'By tier.', schema: Type.Array(HardwareClassRecord) },
    },
    errors: {},
  },
} as const satisfies Record<string, Operation>;

export const regionResource = {
  tags: { Regions: 'Where sandboxes may be placed.' },
  operations: regionOperations,
  schemas: { Region: RegionRecord },
} as const satisfies ApiResource;
