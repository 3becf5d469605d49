import type { BuildQueue } from '../../storage/images/build-queue.ts';
import type { Database } from '@releap/database';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import type { Overcommit } from '../scheduler/overcommit.ts';
import type { Logger } from 'pino';
import type { Moves } from '../moves/moves.ts';
import type { RunnerCredentials } from '../../platform/credentials/runner-credentials.ts';
import type { Scheduler } from '../scheduler/scheduler.ts';
import type { Snapshots } from '../snapshots/snapshots.ts';
import type { Module } from '../../platform/module.ts';
import { MOVES_PURGE } from '../moves/purge.ts';
import { drain } from './drain.ts';
import { releaseForgotten } from './forget.ts';
import { hostRoutes } from './routes.ts';

/** Interval of the search for leftovers of interrupted calls on forgotten hosts. */
const FORGOTTEN_MS = 30_000;

export interface HostsModuleOptions {
  builds: BuildQueue;
  database: Database;
  lifecycle: Lifecycle;
  moves: Moves;
  limits: { overcommit: Overcommit; runnerLostAfterMs: number; sweepMs: number };
  log: Logger;
  runnerCredentials: RunnerCredentials;
  scheduler: Scheduler;
  snapshots: Snapshots;
}

export function hostsModule(context: HostsModuleOptions): Module {
  return {
    name: 'hosts',
    routes: (planes) => hostRoutes(planes, context),
    purges: [MOVES_PURGE],
    tasks: [
      { name: 'host-drain', everyMs: context.limits.sweepMs, leased: true, run: () => drain(context) },
      {
        name: 'sandbox-moves',
        everyMs: context.limits.sweepMs,
        leased: true,
        run: () => context.moves.sweep(),
      },
      { name: 'forgotten-hosts', everyMs: FORGOTTEN_MS, leased: true, run: () => releaseForgotten(context) },
    ],
  };
}
