import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import { createLiveness } from './liveness.ts';

const HEARTBEAT_MS = 5_000;

export function runnersModule({ events, heartbeats, limits, log, runners }: ControlContext): Module {
  const everyMs = Math.min(HEARTBEAT_MS, limits.runnerLostAfterMs / 4);
  const liveness = createLiveness(limits.runnerLostAfterMs);
  events.on('changed-elsewhere', (changed) =>
    runners.changedElsewhere(
      changed.map(([id, runner_id, generation, kind]) => ({ id, runner_id, generation, kind })),
    ),
  );
  events.on('notifications-missed', () => {
    runners
      .resync()
      .catch((error: unknown) => log.warn({ err: error }, 'runners are sent later what they have missed'));
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
          if (liveness.listening) await runners.markSilentRunnersLost(limits.runnerLostAfterMs);
        },
      },
    ],
  };
}
