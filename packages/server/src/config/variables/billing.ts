/** Prices and credits. */
import { BILLING_MODES, BILLING_SETTINGS, OVERDRAFT_DEFAULT, PRICE_DEFAULTS } from '@releap/control/billing';
import { Type } from 'typebox';
import { variable } from './variable.ts';

const Price = Type.String({
  pattern: '^\\d{1,6}(\\.\\d{1,12})?$',
  expected: 'a decimal from 0 with at most 12 digits after the point',
});

const Credits = Type.String({
  pattern: '^\\d{1,9}(\\.\\d{1,9})?$',
  expected: 'a decimal from 0 with at most 9 digits after the point',
});

export const BILLING = {
  RELEAP_BILLING: variable({
    schema: Type.Enum(BILLING_MODES),
    default: BILLING_SETTINGS.mode,
    description:
      '`meter`: use is written to the ledger of each organization, and nothing is refused. `enforce`: at a ' +
      'balance of zero nothing new is started, and beyond the overdraft limit running sandboxes are deleted; give ' +
      'credits with `rlp admin grant`. `off`: nothing is charged.',
    group: 'Billing',
  }),
  RELEAP_OVERDRAFT_LIMIT: variable({
    schema: Credits,
    default: OVERDRAFT_DEFAULT,
    unit: 'credits',
    description:
      'How far below zero a balance may fall before running sandboxes are deleted, for organizations without their own limit.',
    group: 'Billing',
  }),
  RELEAP_METER_SECONDS: variable({
    schema: Type.Integer({ minimum: 1, maximum: 3600 }),
    default: BILLING_SETTINGS.meterMs / 1000,
    unit: 's',
    description:
      'Interval of the ledger entries of a running sandbox. Ended use is charged within seconds, and limits are ' +
      'enforced each minute in any case.',
    group: 'Billing',
  }),
  RELEAP_PRICE_CPU_SECOND: variable({
    schema: Price,
    default: PRICE_DEFAULTS.cpuSecond,
    unit: 'credits',
    description: 'Price of a guaranteed core for a second.',
    group: 'Billing',
  }),
  RELEAP_PRICE_MEMORY_GIB_SECOND: variable({
    schema: Price,
    default: PRICE_DEFAULTS.memGibSecond,
    unit: 'credits',
    description: 'Price of a guaranteed GiB of memory for a second.',
    group: 'Billing',
  }),
  RELEAP_PRICE_BURST_CPU_SECOND: variable({
    schema: Price,
    default: PRICE_DEFAULTS.burstCpuSecond,
    unit: 'credits',
    description: 'Price of a core above the guarantee for a second.',
    group: 'Billing',
  }),
  RELEAP_PRICE_GPU_SECOND: variable({
    schema: Price,
    default: PRICE_DEFAULTS.gpuSecond,
    unit: 'credits',
    description: 'A dedicated GPU for a second.',
    group: 'Billing',
  }),
  RELEAP_PRICE_FUNCTION_CPU_SECOND: variable({
    schema: Price,
    default: PRICE_DEFAULTS.functionCpuSecond,
    unit: 'credits',
    description: 'Price of a second of an invocation, for each vCPU of the function.',
    group: 'Billing',
  }),
  RELEAP_PRICE_FUNCTION_MEMORY_GIB_SECOND: variable({
    schema: Price,
    default: PRICE_DEFAULTS.functionMemGibSecond,
    unit: 'credits',
    description: 'Price of a second of an invocation, for each GiB of memory of the function.',
    group: 'Billing',
  }),
  RELEAP_FUNCTION_START_FREE_S: variable({
    schema: Type.Integer({ minimum: 0, maximum: 3_600 }),
    default: PRICE_DEFAULTS.startFreeSeconds,
    unit: 'seconds',
    description:
      'How long the start of an instance of a function is free. After that it costs what an invocation does, until its handler listens.',
    group: 'Billing',
  }),
  RELEAP_PRICE_BUILD_CPU_SECOND: variable({
    schema: Price,
    default: PRICE_DEFAULTS.buildCpuSecond,
    unit: 'credits',
    description: 'Price of a second of the build of a Dockerfile, for each of its 2 vCPUs.',
    group: 'Billing',
  }),
  RELEAP_PRICE_BUILD_MEMORY_GIB_SECOND: variable({
    schema: Price,
    default: PRICE_DEFAULTS.buildMemGibSecond,
    unit: 'credits',
    description: 'Price of a second of the build of a Dockerfile, for each of its 2 GiB of memory.',
    group: 'Billing',
  }),
  RELEAP_SPOT_DISCOUNT: variable({
    schema: Type.Integer({ minimum: 0, maximum: 100 }),
    default: PRICE_DEFAULTS.spotDiscountPercent,
    unit: 'percent',
    description: 'Discount on guarantees in the spot tier. Burst has no discount.',
    group: 'Billing',
  }),
} as const;
