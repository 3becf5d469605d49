/** Events inside one control server. Modules listen to what others do without knowing them. */
import type { CpuReading } from '@releap/contract';
import type { SandboxRow, SnapshotRow } from '@releap/database';
import type { Logger } from 'pino';
import type { Changed } from './cluster-notifier.ts';

/** A resource on a host whose assignment has changed. */
export interface AssignmentChange {
  id: string;
  runner_id: string;
  generation: number;
  assigned_to_runner: boolean;
}

/** An instance of a function whose handler listens. */
export interface ListeningInstance {
  /** UUID of its sandbox. */
  id: string;
  /** UUID of the gateway that says so. */
  gatewayId: string;
  /** Since when, on the monotonic clock of this process. */
  since: number;
}

export interface ControlEvents {
  /** Committed changes that this server made. */
  'sandboxes-changed': readonly SandboxRow[];
  'snapshots-changed': readonly SnapshotRow[];
  'artifacts-changed': readonly AssignmentChange[];
  /** Artifacts may be due to be copied into stores of regions. */
  'replications-pending': undefined;
  /** Copies of volumes on hosts. */
  'volumes-changed': readonly AssignmentChange[];
  /** Functions with these ids have changed: their current version, its configuration, or who may call them; or are deleted. */
  'functions-changed': readonly string[];
  /** A gateway waits for capacity of these functions (UUIDs): others are to end idle instances. */
  'function-pressure': readonly string[];
  /** Gateways are to give up these instances of functions (UUIDs of sandboxes) as soon as they serve nothing. */
  'instances-retired': readonly string[];
  /** Connected gateways are to end up to `most` of these instances that serve nothing, those that have for longest first. */
  'idle-instances-wanted': { instances: readonly string[]; most: number };
  /** A gateway has said that the handlers of these instances listen. */
  'instances-listening': readonly ListeningInstance[];
  /** Versions of functions are there to be tried. */
  'versions-pending': undefined;
  /** Invocations wait for a server that runs them. */
  'invocations-pending': undefined;
  /** Committed changes that another server made. */
  'changed-elsewhere': readonly Changed[];
  /** Notifications of other servers may have been missed. */
  'notifications-missed': undefined;
  /** A host may have free capacity now that it had not before. */
  'capacity-released': undefined;
  /** A runner has connected here and takes work. */
  'runner-ready': undefined;
  /** A gateway or a control server at this address needs connections of a runner that accepts none. */
  'connections-wanted': { runnerId: string; address: string };
  /** CPU counters that a runner has reported. */
  'runner-usage': { runnerId: string; readings: readonly CpuReading[] };
  /** These projects were deleted; their contents are still there. */
  'projects-deleted': readonly string[];
}

export interface EventBus {
  /** Listeners are called in the order in which they were added, and must not block. */
  on<Name extends keyof ControlEvents>(name: Name, listener: (event: ControlEvents[Name]) => void): void;
  emit<Name extends keyof ControlEvents>(
    name: Name,
    ...event: undefined extends ControlEvents[Name] ? [] : [ControlEvents[Name]]
  ): void;
}

export function createEventBus(log: Logger): EventBus {
  const listeners = new Map<keyof ControlEvents, ((event: never) => void)[]>();
  return {
    on(name, listener) {
      listeners.set(name, [...(listeners.get(name) ?? []), listener]);
    },
    emit(name, ...[event]) {
      for (const listener of listeners.get(name) ?? []) {
        try {
          listener(event as never);
        } catch (error) {
          // One listener's failure must not keep the others from hearing of it.
          log.error({ err: error, event: name }, 'a listener failed');
        }
      }
    },
  };
}
