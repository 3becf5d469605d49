/** Regions: where sandboxes may be placed. */
import { Type, type Static } from 'typebox';

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
