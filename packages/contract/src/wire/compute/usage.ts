/** What sandboxes use: the counters of a host, the history of one sandbox, and the report of a project. */
import { Type, type Static } from 'typebox';
import { HOST_STARTING } from '../platform/fields.ts';
import type { ApiResource, Operation } from '../platform/operation.ts';
import { cursorKind, CursorParam, NextCursor, TimeParam } from '../platform/paging.ts';
import { SandboxParams } from './sandbox-record.ts';

const Bytes = (description: string) => Type.Integer({ minimum: 0, description });
const Amount = (description: string) => Type.Number({ minimum: 0, description });
const Time = (description: string) => Type.String({ format: 'date-time', description });
const SandboxId = Type.String({ description: 'As in the record of the sandbox.' });
const Available = Type.Boolean({
  description: 'False while the service records no use: the list is empty then.',
});

/** Counters that only grow, over any period. */
const counters = {
  cpu_core_s: Amount('CPU time: seconds of one core.'),
  disk_read_bytes: Bytes('Read from storage; what the cache of the host had is not counted.'),
  disk_write_bytes: Bytes('Written to the disks of the sandbox.'),
  net_rx_bytes: Bytes('Received by the sandbox.'),
  net_tx_bytes: Bytes('Sent by the sandbox.'),
};

/** The answer of a host, without the id. */
export const UsageOfRun = Type.Object({
  at: Time('When the counters were read.'),
  duration_ms: Bytes('Time since the start of this run: the last create, start, resume or fork.'),
  ...counters,
  mem_bytes: Bytes('Memory in use now, with that of its VMM.'),
  disk_bytes: Bytes('Space that its disks take now, without the image.'),
});
export type UsageOfRun = Static<typeof UsageOfRun>;

export const SandboxUsage = Type.Object({ sandbox_id: SandboxId, ...UsageOfRun.properties });
export type SandboxUsage = Static<typeof SandboxUsage>;

/** Most periods of one answer. */
export const USAGE_PERIODS_MAX = 10_080;
/** Most items of one page of a report. */
export const USAGE_ITEMS_MAX = 10_000;

const UsagePeriod = Type.Object({
  start: Time('Of the bucket: a whole minute or hour, UTC.'),
  duration_ms: Bytes(
    'Time within the bucket that was observed. Less than the bucket when the sandbox ran for a part of it.',
  ),
  ...counters,
  mem_gib_s: Amount('Memory: GiB times seconds.'),
  disk_peak_bytes: Bytes('Most space that its disks took.'),
});
export type UsagePeriod = Static<typeof UsagePeriod>;

const HistoryResolution = Type.Enum(['m', 'h'] as const, { description: 'Minutes or hours. Default m.' });
export const UsageHistoryQuery = Type.Object({
  from: Type.Optional(TimeParam('RFC 3339, inclusive. Default 24 hours before `to`.')),
  to: Type.Optional(TimeParam('RFC 3339, exclusive. Default now.')),
  resolution: Type.Optional(HistoryResolution),
});

export const UsageHistory = Type.Object({
  available: Available,
  sandbox_id: SandboxId,
  periods: Type.Array(UsagePeriod, {
    description: 'Oldest first. A bucket in which it did not run is absent.',
  }),
});
export type UsageHistory = Static<typeof UsageHistory>;

const UsageItem = Type.Object({
  sandbox_id: SandboxId,
  name: Type.Union([Type.String(), Type.Null()], {
    description: 'Null when the sandbox was deleted long ago.',
  }),
  start: Time('Of the interval: a whole hour or day, UTC.'),
  duration_ms: Bytes('Time within the interval that was observed.'),
  ...counters,
  mem_gib_h: Amount('Memory: GiB times hours.'),
  disk_peak_bytes: Bytes('Most space that its disks took.'),
});
export type UsageItem = Static<typeof UsageItem>;

const ReportResolution = Type.Enum(['h', 'd'] as const, { description: 'Hours or days. Default h.' });
export const UsageReportQuery = Type.Object({
  start: Type.Optional(TimeParam('RFC 3339, inclusive. Default one day before `end`.')),
  end: Type.Optional(TimeParam('RFC 3339, exclusive. Default now.')),
  resolution: Type.Optional(ReportResolution),
  cursor: Type.Optional(CursorParam),
});

export const UsageReport = Type.Object({
  available: Available,
  items: Type.Array(UsageItem, { description: 'Newest interval first.' }),
  next_cursor: Type.Optional(NextCursor),
});
export type UsageReport = Static<typeof UsageReport>;

export const USAGE_REPORT_CURSORS = cursorKind(13);

const unknownSandbox = 'The id is unknown, malformed or of another project.';
const invalidRange = 'A time is not RFC 3339, the range is empty or too long, or the resolution is unknown.';

export const usageOperations = {
  getUsage: {
    method: 'GET',
    path: '/vms/:id/usage',
    tag: 'Usage',
    summary: 'Read what a running sandbox uses',
    description: 'Read from its host at the time of the request; counters are those of the present run.',
    security: 'workload',
    params: SandboxParams,
    success: { status: 200, response: { description: 'The counters.', schema: SandboxUsage } },
    codes: ['sandbox_off_host'],
    errors: {
      404: `${unknownSandbox} Or it is not on a host, for example stopped.`,
      502: 'Its host did not answer.',
      503: HOST_STARTING,
    },
  },
  getUsageHistory: {
    method: 'GET',
    path: '/vms/:id/usage/history',
    tag: 'Usage',
    summary: 'Read what a sandbox has used, by minute or hour',
    description:
      'Buckets are integrals: divide by `duration_ms` for averages (average cores are ' +
      '`cpu_core_s / (duration_ms / 1000)`). [usage.md](usage.md) says how they are measured and how long they are kept.',
    security: 'workload',
    params: SandboxParams,
    query: UsageHistoryQuery,
    success: { status: 200, response: { description: 'The buckets.', schema: UsageHistory } },
    errors: { 400: invalidRange, 404: unknownSandbox },
  },
  getUsageReport: {
    method: 'GET',
    path: '/usage/report',
    tag: 'Usage',
    summary: 'Read what the sandboxes of the project have used, by hour or day',
    description: `One item for each sandbox and interval in which it ran, deleted sandboxes included; at most ${USAGE_ITEMS_MAX} a page.`,
    security: 'workload',
    query: UsageReportQuery,
    items: 'items',
    success: { status: 200, response: { description: 'One page.', schema: UsageReport } },
    errors: { 400: `${invalidRange} Or the cursor is malformed.` },
  },
} as const satisfies Record<string, Operation>;

export const usageResource = {
  tags: { Usage: 'What sandboxes use: CPU, memory, disk and network.' },
  operations: usageOperations,
  schemas: { SandboxUsage, UsageHistory, UsageReport },
} as const satisfies ApiResource;
