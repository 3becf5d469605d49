import { all, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { BuildQueue } from '../images/build-queue.ts';
import type { Authenticator } from '../auth/authenticator.ts';
import { drain } from '../hosts/drain.ts';
import type { Idempotency } from '../idempotency/idempotency.ts';
import type { Bridge } from '../events/bridge.ts';
import type { Hub } from '../events/hub.ts';
import type { ControlLimits } from '../limits.ts';
import type { Teardown } from '../management/teardown.ts';
import type { RunnerRegistry } from '../runners/registry.ts';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import type { Snapshots } from '../snapshots/snapshots.ts';
import type { Change } from '../sandboxes/transition-sql.ts';
import { NEED, toNeed, type Scheduler } from './scheduler.ts';

export interface Sweeper {
  /** One pass; the timer does the same. */
  sweep(): Promise<void>;
  close(): Promise<void>;
}

export interface SweeperOptions {
  database: Database;
  lifecycle: Lifecycle;
  scheduler: Scheduler;
  registry: RunnerRegistry;
  snapshots: Snapshots;
  builds: BuildQueue;
  teardown: Teardown;
  authenticator: Authenticator;
  idempotency: Idempotency;
  bridge: Bridge;
  hub: Hub;
  limits: ControlLimits;
  log: Logger;
}

const OVERDUE = statement<{
  id: string;
  status: string;
  region: string;
  cpu_arch: string;
  cpu: number;
  mem_mib: number;
  disk_mib: number;
  gpu_host: number;
  required_runner_id: string | null;
}>(
  'sandboxes-overdue',
  `select id, status, ${NEED}
     from sandboxes s where deadline_at <= now() order by deadline_at limit 500`,
);

/** Every how many passes the slower work is done. */
const HEARTBEAT_MS = 5_000;
const LAST_USED_MS = 30_000;
const IDEMPOTENCY_MS = 30_000;
/** Waiters look by themselves, and runners are told what they missed, this often while other servers write to the database. */
const RECHECK_MS = 10_000;

/** The one timer of the control plane: it leads every transient state to its exit, whatever else was missed. */
export function startSweeper(options: SweeperOptions): Sweeper {
  const { database, lifecycle, scheduler, registry, builds, log, limits } = options;
  // What time it is may be set, by hours; the monotonic clock counts no suspension of the machine. So: both.
  let aliveSince = performance.now();
  let lastGood = { passed: performance.now(), time: Date.now() };
  const due = new Map<string, number>();
  let running: Promise<void> | undefined;

  const every = (what: string, ms: number): boolean => {
    const now = performance.now();
    if (now < (due.get(what) ?? 0)) return false;
    due.set(what, now + ms);
    return true;
  };

  async function overdue(): Promise<void> {
    const rows = await all(database.pool, OVERDUE);
    const changes: Change[] = [];
    for (const row of rows) {
      const late = `it was ${row.status} for longer than ${limits.deadlines[row.status as keyof typeof limits.deadlines] / 1000} s`;
      const error = row.status === 'pending' ? `${late}: ${await scheduler.reasonFor(toNeed(row))}` : late;
      changes.push({ id: row.id, overdue: true, error });
    }
    const moved = await lifecycle.apply('deadline', changes);
    for (const row of moved)
      log.warn({ vm: row.id, status: row.status, reason: row.error }, 'a deadline has passed');
    if (moved.length > 0) scheduler.capacityReleased();
  }

  async function pass(): Promise<void> {
    const now = performance.now();
    // While the database could not be reached nobody could be heard: silence counts from its return.
    const away = Math.max(now - lastGood.passed, Date.now() - lastGood.time);
    if (away > limits.runnerLostAfterMs / 2) aliveSince = now;
    if (every('beat', Math.min(HEARTBEAT_MS, limits.runnerLostAfterMs / 4))) {
      await options.bridge.beat();
      await registry.beat();
      if (now - aliveSince >= limits.runnerLostAfterMs) await registry.loseSilent(limits.runnerLostAfterMs);
    }
    await overdue();
    await drain({ database, lifecycle });
    scheduler.kick();
    await options.snapshots.sweep();
    await builds.sweep();
    // Not waited for: deadlines must not be late because somebody deletes a lot.
    options.teardown.kick();
    if (every('last-used', LAST_USED_MS)) await options.authenticator.flush();
    if (every('idempotency', IDEMPOTENCY_MS)) await options.idempotency.sweep();
    if (options.bridge.hasPeers && every('recheck', RECHECK_MS)) {
      options.hub.changedAll();
      await registry.catchUp();
    }
    lastGood = { passed: performance.now(), time: Date.now() };
  }

  const sweep = (): Promise<void> =>
    (running ??= pass()
      .catch((error: unknown) => log.error({ err: error }, 'the sweeper failed and will try again'))
      .finally(() => (running = undefined)));

  const timer = setInterval(() => void sweep(), limits.sweepMs);
  return {
    sweep,
    async close() {
      clearInterval(timer);
      await running;
    },
  };
}
