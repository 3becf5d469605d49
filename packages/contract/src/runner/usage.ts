/** Usage of micro-VMs. */
import { Type, type Static } from 'typebox';
import { BOUNDS } from '../wire/platform/limits.ts';
import { Count, Large, Uuid } from '../wire/platform/fields.ts';
import { USAGE_READINGS_MAX } from './link.ts';

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

/** Control stores the use of sandboxes: without it, a runner discards what it has recorded. */
export const USAGE_HISTORY_CAPABILITY = 'usage-history';

/** What a sandbox has used in a part of one minute. Parts of a minute are added up, but for the peak. */
export const UsagePiece = Type.Object({
  vm_id: Uuid,
  /** The minute, counted from 1970 UTC on the runner's clock. */
  minute: Type.Integer({ minimum: 0, maximum: BOUNDS.int32 }),
  /** Time that was observed. */
  duration_ms: Count,
  /** Microseconds of one core. */
  cpu_usec: Large,
  /** Memory times milliseconds. */
  memory_kib_ms: Large,
  disk_peak_bytes: Large,
  disk_read_bytes: Large,
  disk_write_bytes: Large,
  net_rx_bytes: Large,
  net_tx_bytes: Large,
});
export type UsagePiece = Static<typeof UsagePiece>;

/**
 * Runner to control: recorded use. The runner keeps it on disk, and sends it again, until control acknowledges `seq`, which
 * grows with each message that has new content; one is sent at a time. No two pieces of a message have the same sandbox and minute.
 */
export const UsageHistoryMessage = Type.Object({
  type: Type.Literal('usage_history'),
  seq: Large,
  pieces: Type.Array(UsagePiece, { maxItems: USAGE_READINGS_MAX }),
});
export type UsageHistoryMessage = Static<typeof UsageHistoryMessage>;

/** Control to runner: the `usage_history` with this `seq` is stored. */
export const UsageStoredMessage = Type.Object({ type: Type.Literal('usage_stored'), seq: Large });
export type UsageStoredMessage = Static<typeof UsageStoredMessage>;
