import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import { createLiveness } from './liveness.ts';

const HEARTBEAT_MS = 5_000;

export function runnersModule({ events, heartbeats, limits, log, runners }: ControlContext): Module {
  const everyMs = Math.min(HEARTBEAT_MS, limits.runnerLostAfterMs / 4);
  const liveness = createLiveness(limits.runnerLostAfterMs);
  events.on('sandboxes-changed', (rows) => runners.push(rows));
  events.on('snapshots-changed', (rows) => runners.pushSnapshots(rows));
  events.on('changed-elsewhere', (changed) => {
    for (const [runnerId, all] of Map.groupBy(changed, ([, runner]) => runner)) {
      if (runnerId === null || !runners.isConnected(runnerId)) continue;
      runners
        .pushById(
          runnerId,
          all.map(([id]) => id),
        )
        .catch((error: unknown) =>
          log.error({ err: error, runner: runnerId }, 'a runner could not be told of a change'),
        );
    }
  });
  events.on('notifications-missed', () => {
    runners
      .catchUp()
      .catch((error: unknown) => log.warn({ err: error }, 'runners are told later what they have missed'));
  });
  return {
    name: 'runners',
    tasks: [
      {
        name: 'runner-heartbeat',
        everyMs,
        leased: false,
        async run() {
          await runners.heartbeat(heartbeats.pool);
          liveness.succeeded();
        },
      },
      {
        name: 'lost-runners',
        everyMs,
        leased: true,
        async run() {
          if (liveness.listening) await runners.loseSilent(limits.runnerLostAfterMs);
        },
      },
    ],
  };
}
