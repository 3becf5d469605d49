/**
 * Classes of hardware: CPU types, network classes and disk classes, each with a tier. `POST /vms` takes the slug of one as a minimum.
 * The operator defines them, and says which hosts have them.
 */
import { Type, type Static } from 'typebox';
import type { ApiResource, Operation } from '../platform/operation.ts';
import { CpuArch } from './sandbox-record.ts';

/** Named like the fields of `POST /vms`. */
export const CLASS_KINDS = ['cpu_type', 'network_class', 'disk_class'] as const;
export const ClassKind = Type.Enum(CLASS_KINDS);
export type ClassKind = (typeof CLASS_KINDS)[number];

/** Most classes of all kinds: every placement reads them. */
export const HARDWARE_CLASSES_MAX = 200;

export const ClassSlug = Type.String({
  pattern: '^[a-z0-9][a-z0-9._-]{0,62}$',
  expected: 'a slug: a-z, 0-9, dots, hyphens and underscores, at most 63 characters',
});
const Tier = Type.Integer({
  minimum: 1,
  maximum: 1000,
  description: '1 is the lowest. CPU tiers are counted per architecture.',
});

export const HardwareClassRecord = Type.Object({
  slug: Type.String(),
  name: Type.String(),
  tier: Tier,
  arch: Type.Optional(Type.String({ description: 'Architecture; CPU types only.' })),
});
export type HardwareClassRecord = Static<typeof HardwareClassRecord>;

export const HardwareClass = Type.Object({
  kind: ClassKind,
  slug: Type.String(),
  name: Type.String(),
  tier: Tier,
  arch: Type.Optional(CpuArch),
  cpu_models: Type.Array(Type.String(), {
    description:
      'Hosts whose processor has one of these texts in its name have this class, unless another one is given for them.',
  }),
  hosts: Type.Integer({ description: 'Hosts that have this class.' }),
});
export type HardwareClass = Static<typeof HardwareClass>;

export const HardwareClassList = Type.Object({ classes: Type.Array(HardwareClass) });
export type HardwareClassList = Static<typeof HardwareClassList>;

export const HardwareClassRequest = Type.Object({
  name: Type.Optional(Type.String({ minLength: 1, maxLength: 128, description: 'Default: the slug.' })),
  tier: Tier,
  arch: Type.Optional(CpuArch),
  cpu_models: Type.Optional(
    Type.Array(Type.String({ minLength: 3, maxLength: 200 }), {
      maxItems: 32,
      description: 'CPU types only: parts of the names of processors, in any case of letters.',
    }),
  ),
});
export type HardwareClassRequest = Static<typeof HardwareClassRequest>;

/** `refusal`: an invalid slug in the path is a bad request, not an unknown path. */
export const HardwareClassParams = Type.Object({ kind: ClassKind, id: ClassSlug }, { refusal: 400 });

/** Of a host. */
export const HostClass = Type.Object({
  slug: Type.String(),
  tier: Tier,
  source: Type.Enum(['operator', 'host', 'model'] as const, {
    description:
      '`operator`: set for this host. `host`: declared in the configuration of its runner. `model`: by the name of its processor.',
  }),
});
export type HostClass = Static<typeof HostClass>;

const ofKinds = <const S>(schema: S): Record<ClassKind, S> => ({
  cpu_type: schema,
  network_class: schema,
  disk_class: schema,
});

/** Declared in the configuration of a runner. */
export const DeclaredClasses = Type.Object(ofKinds(Type.Optional(Type.String({ maxLength: 64 }))), {
  description: 'The classes of hardware that the configuration of its runner declares.',
});
export type DeclaredClasses = Static<typeof DeclaredClasses>;

export const HostClasses = Type.Object(ofKinds(Type.Union([HostClass, Type.Null()])));
export type HostClasses = Static<typeof HostClasses>;

export const HostClassesRequest = Type.Object(
  ofKinds(
    Type.Optional(
      Type.Union([ClassSlug, Type.Null()], {
        description: 'Null: what the host declares applies again. Absent: no change.',
      }),
    ),
  ),
  { minProperties: 1 },
);
export type HostClassesRequest = Static<typeof HostClassesRequest>;

const listed = (what: string, path: string, order: string) =>
  ({
    method: 'GET',
    path,
    tag: 'Hardware classes',
    summary: `List the values of ${what}`,
    security: 'workload',
    success: {
      status: 200,
      response: { description: order, schema: Type.Array(HardwareClassRecord) },
    },
    errors: {},
  }) as const;

export const hardwareClassOperations = {
  listCpuTypes: listed('cpu_type', '/cpu-types', 'By architecture and tier.'),
  listNetworkClasses: listed('network_class', '/network-classes', 'By tier.'),
  listDiskClasses: listed('disk_class', '/disk-classes', 'By tier.'),
} as const satisfies Record<string, Operation>;

export const hardwareClassResource = {
  tags: { 'Hardware classes': 'Minimum hardware that a sandbox may ask for.' },
  operations: hardwareClassOperations,
  schemas: { HardwareClass: HardwareClassRecord },
} as const satisfies ApiResource;

const onClass = {
  tag: 'Hardware classes',
  security: 'operator',
  path: '/operator/hardware-classes/:kind/:id',
  params: HardwareClassParams,
} as const;

export const operatorClassOperations = {
  listHardwareClasses: {
    method: 'GET',
    path: '/operator/hardware-classes',
    tag: 'Hardware classes',
    summary: 'List the classes of hardware',
    security: 'operator',
    items: 'classes',
    success: {
      status: 200,
      response: { description: 'All of them, by kind, architecture and tier.', schema: HardwareClassList },
    },
    errors: {},
  },
  putHardwareClass: {
    ...onClass,
    method: 'PUT',
    summary: 'Define a class of hardware, or change it',
    description:
      'A new tier applies to placements from then on; sandboxes stay where they are. The architecture of a CPU type cannot be changed.',
    body: HardwareClassRequest,
    success: { status: 200, response: { description: 'Defined.', schema: HardwareClass } },
    codes: ['limit_reached'],
    errors: {
      400: 'A field is not valid, or it does not go with the kind of the class.',
      409: 'The architecture of the class is another one, or there are as many classes as there may be.',
    },
  },
  deleteHardwareClass: {
    ...onClass,
    method: 'DELETE',
    summary: 'Delete a class of hardware that nothing uses',
    success: { status: 204, response: { description: 'Deleted.' } },
    codes: ['in_use'],
    errors: {
      404: 'There is no such class.',
      409: 'A host has this class, or a sandbox has asked for it.',
    },
  },
} as const satisfies Record<string, Operation>;
