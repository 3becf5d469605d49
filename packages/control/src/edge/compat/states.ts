/** States of the protocol, in terms of our statuses. */
import type { CompatSandboxState, SandboxStatus } from '@releap/contract';

/**
 * `building` is the pull of an image or the build of a Dockerfile. Never `pending_build`: with it the SDK asks for the
 * build's log, which sandboxes do not have. A failure is `error`: the SDK polls every other state until its time is over.
 */
const STATES: Readonly<Record<SandboxStatus, CompatSandboxState>> = {
  pending: 'creating',
  assigned: 'creating',
  building: 'building_snapshot',
  booting: 'starting',
  running: 'started',
  stopping: 'stopping',
  stopped: 'stopped',
  pausing: 'pausing',
  paused: 'paused',
  deleting: 'destroying',
  deleted: 'destroyed',
  failed: 'error',
  lost: 'error',
};

/** The state as SQL, of the tables `sandboxes s` and `compat_sandboxes c`. */
export const STATE_SQL = `case
  when c.stopped and s.status = 'deleting' then 'stopping'
  when c.stopped and s.status = 'deleted' then 'stopped'
  when s.status = 'building' and s.spec -> 'root' ->> 'type' <> 'dockerfile' then 'pulling_snapshot'
  ${Object.entries(STATES)
    .map(([status, state]) => `when s.status = '${status}' then '${state}'`)
    .join(' ')} end`;

const LEADS_TO_STARTED: readonly CompatSandboxState[] = [
  'creating',
  'building_snapshot',
  'pulling_snapshot',
  'starting',
];

export const isStarting = (state: CompatSandboxState): boolean => LEADS_TO_STARTED.includes(state);
