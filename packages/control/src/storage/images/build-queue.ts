/** Leases image builds to runners, and fails those that take too long. */
import { DOCKER_CAPABILITY, DOCKERFILE_CAPABILITY, hasShare } from '@releap/contract';
import { queryAll, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { PullCredentials } from '../registries/pull-credentials.ts';
import type { ReconciledKind } from '../../platform/reconciled-kind.ts';
import type { ChangedResource } from '../../fleet/runners/registry.ts';
import {
  BUILDS,
  BUSY,
  LEASE,
  OVERDUE,
  RETRY_BUILTINS,
  UNBUILDABLE,
  WAITING,
  type BuildAttempt,
} from './build-statements.ts';
import { createWorkLoop } from '../../platform/work/work-loop.ts';
import { createBuildKind } from './reconciled-kind.ts';

export interface BuildQueue {
  /** Sends leased builds to runners. */
  readonly kind: ReconciledKind;
  /** Call it when there may be a build, a free runner, or a build to cancel. */
  kick(): void;
  /** Retries failed builds of built-in images. */
  retryBuiltins(): Promise<void>;
  /** Extends the leases of connected runners, cancels builds that have ended here, and fails what is overdue. */
  sweep(): Promise<void>;
  /** Resolves when no lease is under way. */
  idle(): Promise<void>;
  close(): Promise<void>;
}

/** A runner that is connected to this server. */
export interface Builder {
  readonly runnerId: string;
  readonly region: string;
  readonly ready: boolean;
  readonly kinds: ReadonlySet<string>;
  readonly capabilities: ReadonlySet<string>;
}

/** The settings of builds. */
export interface BuildLimits {
  /** Concurrent builds on one runner. */
  buildsPerRunner: number;
  /** Concurrent builds of one project. */
  buildsPerProject: number;
  /** A build whose runner is disconnected for this long is assigned to another, in milliseconds. */
  buildLeaseMs: number;
  /** Longest a build may take, and longest it may wait for a runner, in milliseconds. */
  buildDeadlineMs: number;
  /** How long a build waits for a host that can build it, when no known one of its region can. */
  buildHostMs: number;
  /** Attempts before a build fails. */
  buildAttempts: number;
}

export interface BuildQueueOptions {
  database: Database;
  credentials: PullCredentials;
  limits: BuildLimits;
  log: Logger;
  /** The runners that are connected to this server. */
  builders: () => readonly Builder[];
  /** Builds whose assignment has changed. */
  onChanged: (resources: readonly ChangedResource[]) => void;
}

/** An organization may have this many times as many builds under way as places are free: alone it leaves a quarter to newcomers. */
const ORG_SHARE = 3;
/** Most builds that are leased in one statement. */
const LEASE_BATCH = 200;

export function createBuildQueue(options: BuildQueueOptions): BuildQueue {
  const { database, credentials, limits, log, builders, onChanged } = options;
  /** A Dockerfile waits that no runner connected here can build. */
  let isOneUnbuildable = false;
  /** Builds in progress on runners that are connected here, by job. */
  const outstanding = new Map<string, BuildAttempt>();
  const loop = createWorkLoop({
    async step() {
      await extendOrCancel();
      return await lease();
    },
    onError: (error) => log.error({ err: error }, 'builds could not be leased'),
  });

  const kind = createBuildKind({
    database,
    credentials,
    onAssigned: ({ id, attempts, runner_id }) => outstanding.set(id, { id, attempts, runner_id }),
    onEnded(jobId, runnerId) {
      // A report of another runner must not hide the build from its cancellation.
      if (outstanding.get(jobId)?.runner_id === runnerId) outstanding.delete(jobId);
      loop.kick();
    },
    log,
  });

  /** At most two statements while no build waits, for any number of runners. @returns whether more may wait */
  async function lease(): Promise<boolean> {
    const ready = builders().filter((one) => one.ready && one.kinds.has('build'));
    if (ready.length === 0) return false;
    const regions = [...new Set(ready.map(({ region }) => region))];
    const waiting = await queryAll(database.pool, WAITING, [
      limits.buildAttempts,
      regions,
      LEASE_BATCH,
      limits.buildsPerProject,
    ]);
    if (waiting.length === 0) return false;
    const busy = await queryAll(database.pool, BUSY, [ready.map(({ runnerId }) => runnerId)]);
    const builds = new Map(busy.map((row) => [row.runner_id, row.builds]));
    const given: { job: string; runner: string }[] = [];
    const ofOrg = new Map(waiting.map(({ org_id, org_builds }) => [org_id, org_builds]));
    for (const job of waiting) {
      const able = ready
        .filter(({ region }) => job.region === null || job.region === region)
        .filter(({ capabilities }) => !job.dockerfile || capabilities.has(DOCKERFILE_CAPABILITY))
        .filter(({ capabilities }) => !job.docker || capabilities.has(DOCKER_CAPABILITY));
      if (able.length === 0) isOneUnbuildable = true;
      const free = able
        .map(({ runnerId }) => ({ runnerId, builds: builds.get(runnerId) ?? 0 }))
        .filter((one) => one.builds < limits.buildsPerRunner)
        .toSorted((a, b) => a.builds - b.builds);
      const chosen = free.find(({ runnerId }) => runnerId === job.previous_runner_id) ?? free[0];
      if (chosen === undefined) continue;
      const own = ofOrg.get(job.org_id) ?? 0;
      const places = free.reduce((sum, one) => sum + limits.buildsPerRunner - one.builds, 0);
      if (job.org_id !== null && !hasShare(own, places, ORG_SHARE)) continue;
      ofOrg.set(job.org_id, own + 1);
      builds.set(chosen.runnerId, chosen.builds + 1);
      given.push({ job: job.id, runner: chosen.runnerId });
    }
    if (given.length === 0) return false;
    const leased = await queryAll(database.pool, LEASE, [
      limits.buildLeaseMs,
      limits.buildAttempts,
      given.map(({ job }) => job),
      given.map(({ runner }) => runner),
    ]);
    // A runner that disconnected meanwhile does not get it: its lease expires, and another runner gets it.
    onChanged(
      leased.map(({ id, runner_id, attempts }) => ({
        id,
        runner_id,
        generation: attempts,
        assigned_to_runner: true,
      })),
    );
    return waiting.length === LEASE_BATCH;
  }

  /** Cancels replaced, deleted and failed builds on the runners that still run them. */
  async function extendOrCancel(): Promise<void> {
    if (outstanding.size === 0) return;
    const connected = new Set(builders().map(({ runnerId }) => runnerId));
    // A disconnected runner learns it from the sync of its next connection, which leaves the build out.
    for (const [jobId, build] of outstanding) if (!connected.has(build.runner_id)) outstanding.delete(jobId);
    const before = [...outstanding.values()];
    const leased = await BUILDS.renew(database.pool, before, limits.buildLeaseMs);
    const ended = before.filter(
      (build) => !leased.has(BUILDS.keyOf(build)) && outstanding.get(build.id) === build,
    );
    for (const { id, runner_id } of ended) {
      outstanding.delete(id);
      log.info({ job: id, runner: runner_id }, 'cancelling a build');
    }
    onChanged(ended.map(({ id, runner_id }) => ({ id, runner_id, assigned_to_runner: true })));
  }

  return {
    kind,
    kick: loop.kick,
    async retryBuiltins() {
      if ((await queryAll(database.pool, RETRY_BUILTINS)).length > 0) loop.kick();
    },
    async sweep() {
      const ended = await queryAll(database.pool, OVERDUE, [limits.buildAttempts, limits.buildDeadlineMs]);
      if (isOneUnbuildable) {
        isOneUnbuildable = false;
        ended.push(
          ...(await queryAll(database.pool, UNBUILDABLE, [DOCKERFILE_CAPABILITY, limits.buildHostMs])),
        );
      }
      for (const { id, error } of ended) log.warn({ job: id, reason: error }, 'a build has failed');
      loop.kick();
    },
    idle: loop.idle,
    close: loop.close,
  };
}
