/** The operations on regions and hardware classes. */
import { Type } from 'typebox';
import type { Operation, ApiResource } from './platform/operation.ts';
import { GlobalRegionRecord, HardwareClassRecord, RegionList, RegionRecord } from './region.ts';

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
