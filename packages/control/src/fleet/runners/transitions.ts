/** The transition table of runners. Events of one that has a newer connection are not applied. */
import { defineMachine, type Transition } from '../../platform/lifecycle/machine.ts';
import { eventSql } from '../../platform/lifecycle/sql.ts';

type RunnerStatus = 'online' | 'offline' | 'lost';
type RunnerEvent = 'hello' | 'heartbeat' | 'disconnect' | 'revoke' | 'silent';

// biome-ignore format: one row per line
export const RUNNER_MACHINE = defineMachine<Transition<RunnerStatus, RunnerEvent>>({
  name: 'runner',
  table: 'runners',
  transitions: [
    { from: ['online', 'offline', 'lost'], on: 'hello', to: 'online', note: 'a new connection; not of a host that was forgotten' },
    { from: ['lost'], on: 'heartbeat', to: 'online' },
    { from: ['online'], on: 'disconnect', to: 'offline' },
    { from: ['online'], on: 'revoke', to: 'offline', note: 'its credential was revoked' },
    { from: ['online', 'offline'], on: 'silent', to: 'lost', note: 'no heartbeat for too long' },
  ],
});
export const RUNNER_EVENTS = eventSql(RUNNER_MACHINE);
