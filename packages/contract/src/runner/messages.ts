/** The messages of both sides, composed of the schemas of the other files. */
import { Type, type Static } from 'typebox';
import { ArtifactAssignment, ArtifactReport } from './artifact.ts';
import { BuildAssignment, BuildReport } from './build.ts';
import { UnsupportedItem } from './envelope.ts';
import { Count, Large } from '../wire/platform/fields.ts';
import { HelloMessage, WelcomeMessage } from './hello.ts';
import { LINK_ITEMS_MAX, REVERSE_ADDRESS } from './link.ts';
import { SandboxAssignment, SandboxReport } from './sandbox.ts';
import { SnapshotAssignment, SnapshotReport } from './snapshot.ts';
import { UsageHistoryMessage, UsageMessage, UsageStoredMessage } from './usage.ts';
import { VolumeAssignment, VolumeReport } from './volume.ts';

/** The kinds of this version, with their schemas in both directions. */
export const KINDS = {
  sandbox: { assignment: SandboxAssignment, report: SandboxReport },
  snapshot: { assignment: SnapshotAssignment, report: SnapshotReport },
  build: { assignment: BuildAssignment, report: BuildReport },
  artifact: { assignment: ArtifactAssignment, report: ArtifactReport },
  volume: { assignment: VolumeAssignment, report: VolumeReport },
} as const;
export type KindName = keyof typeof KINDS;
export const KIND_NAMES = Object.keys(KINDS) as readonly KindName[];

/** The desired state of one resource. */
export type Assignment =
  | SandboxAssignment
  | SnapshotAssignment
  | BuildAssignment
  | ArtifactAssignment
  | VolumeAssignment;
/** The observed state of one resource. */
export type Report = SandboxReport | SnapshotReport | BuildReport | ArtifactReport | VolumeReport;
/** The same for one kind. */
export type AssignmentOf<K extends KindName> = Extract<Assignment, { kind: K }>;
export type ReportOf<K extends KindName> = Extract<Report, { kind: K }>;

const items = Type.Array(Type.Unknown(), { maxItems: LINK_ITEMS_MAX });

/** Runner to control. Sent again at every connection until control acknowledges `seq`. */
export const ReportMessage = Type.Object({ type: Type.Literal('report'), seq: Large, items });
export interface ReportMessage {
  type: 'report';
  seq: number;
  items: Report[];
}

/** Memory that the runner holds outside the guarantees of sandboxes: memory that forks share, loaded snapshots, waiting VMs. */
export const HeldMemory = Type.Object({
  mem_mib: Count,
  /** The part that the runner releases when the host needs it. */
  reclaimable_mib: Count,
});
export type HeldMemory = Static<typeof HeldMemory>;

/** Runner to control, every `HEARTBEAT_MS` and whenever `ready` changes. `ready`: a sandbox can be started here now. */
export const HeartbeatMessage = Type.Object({
  type: Type.Literal('heartbeat'),
  ready: Type.Boolean(),
  held_memory: Type.Optional(HeldMemory),
  /** Free space of the file system of its disks for new sandboxes; 0 without inodes. */
  free_disk_mib: Type.Optional(Count),
});
export type HeartbeatMessage = Static<typeof HeartbeatMessage>;

/**
 * Control to runner, after `welcome`: everything that this runner is assigned. With `more` it continues in the next
 * `sync`: it is complete, and orphans are known, only after the message without it.
 */
export const SyncMessage = Type.Object({
  type: Type.Literal('sync'),
  items,
  more: Type.Optional(Type.Boolean()),
});
export interface SyncMessage {
  type: 'sync';
  items: Assignment[];
  more?: boolean;
}

/** Control to runner: new and changed assignments. */
export const DesiredMessage = Type.Object({ type: Type.Literal('desired'), items });
export interface DesiredMessage {
  type: 'desired';
  items: Assignment[];
}

/**
 * Control to runner: everything up to `seq` is stored. `unsupported` names the items of that report that control does
 * not know or cannot read; they are not stored, and must not be sent again.
 */
export const AckMessage = Type.Object({
  type: Type.Literal('ack'),
  seq: Large,
  unsupported: Type.Optional(Type.Array(UnsupportedItem, { maxItems: LINK_ITEMS_MAX })),
});
export type AckMessage = Static<typeof AckMessage>;

/**
 * Control to runners with `REVERSE_CAPABILITY`: a gateway or a control server at this address needs connections. It is sent again
 * while a request waits for one.
 */
export const DialMessage = Type.Object({ type: Type.Literal('dial'), address: Type.String(REVERSE_ADDRESS) });
export type DialMessage = Static<typeof DialMessage>;

export type RunnerMessage =
  | HelloMessage
  | ReportMessage
  | UsageMessage
  | UsageHistoryMessage
  | HeartbeatMessage;
export type ControlMessage =
  | WelcomeMessage
  | SyncMessage
  | DesiredMessage
  | AckMessage
  | UsageStoredMessage
  | DialMessage;

export const RUNNER_MESSAGES = {
  hello: HelloMessage,
  report: ReportMessage,
  usage: UsageMessage,
  usage_history: UsageHistoryMessage,
  heartbeat: HeartbeatMessage,
} as const;
export const CONTROL_MESSAGES = {
  welcome: WelcomeMessage,
  sync: SyncMessage,
  desired: DesiredMessage,
  ack: AckMessage,
  usage_stored: UsageStoredMessage,
  dial: DialMessage,
} as const;
