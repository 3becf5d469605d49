/** Usage of micro-VMs. */
import { Type, type Static } from 'typebox';
import { Large, Uuid } from './fields.ts';
import { USAGE_READINGS_MAX } from './limits.ts';

/** Usage of one micro-VM so far, from its control group. */
export const CpuReading = Type.Object({
  vm_id: Uuid,
  /** Identifies this run of the VMM: another run counts from zero again. */
  incarnation: Type.String({ minLength: 1, maxLength: 100 }),
  /** CPU time of this run, in microseconds of one core. Never falls. */
  cpu_usec: Large,
  /** Age of this run at the reading, on the machine's monotonic clock, in microseconds. */
  age_usec: Large,
});
export type CpuReading = Static<typeof CpuReading>;

/** Every `USAGE_MS`. Cumulative counters: the next message replaces a lost one, and none is acknowledged. */
export const UsageMessage = Type.Object({
  type: Type.Literal('usage'),
  readings: Type.Array(CpuReading, { maxItems: USAGE_READINGS_MAX }),
});
export type UsageMessage = Static<typeof UsageMessage>;
