/**
 * Runs waiting invocations: leases them, calls a gateway for each, and records how they have ended. Every control server has
 * one. Whatever dies, an invocation is run at least once and ends exactly once: its end is fenced by the attempt (lease.ts).
 */
import { queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { Prices } from '../../tenancy/billing/prices.ts';
import { InFlight } from '../../platform/work/in-flight.ts';
import { createWorkLoop } from '../../platform/work/work-loop.ts';
import {
  exhausted,
  type ExhaustedInvocation,
  INVOCATIONS,
  lease,
  LEASE_MS,
  readBody,
  waitingFunctions,
  type LeasedInvocation,
  type WaitingFunction,
} from './lease.ts';
import { PayloadBudget } from './payload-budget.ts';
import { createRecorder } from './recorder.ts';
import { chargeRunning } from './running.ts';
import type { Ended, Send, SendOutcome, Served } from './send.ts';

/** Attempts before an invocation fails. */
export const ATTEMPTS_MAX = 5;
/** Most invocations in progress on one server, and of one function. */
const SERVER_WINDOW = 2_000;
const FUNCTION_WINDOW = 100;
/** Enough of a function with few instances that they never wait for the next one. */
const FUNCTION_WINDOW_MIN = 16;
/** Functions that one pass looks at. */
const FUNCTIONS_PER_PASS = 200;
const EXHAUSTED_BATCH = 200;
/** Waits before the next attempt of one that may have run, and before the next try of gateways that are not reached. */
const RETRY_MS = 1_000;
const RETRY_MAX_MS = 30_000;
const UNREACHED_MS = 1_000;
/** How old an invocation may become that no gateway takes, in milliseconds: then it fails. */
const UNSENT_MAX_MS = 86_400_000;
/** For an instance to start, a response to be sent, and everything that is not the handler. */
const SLACK_MS = 60_000;
/** Of a function without a current version. */
const TIMEOUT_S = 300;
/** How long a stopping server waits for what it has sent. */
const CLOSE_MS = 2_000;

/** $1 function, $2 version */
const VERSION_ID = statement<{ id: string }>(
  'invocations-version-id',
  'select id from function_versions where function_id = $1 and version = $2',
);

export interface WorkerOptions {
  database: Database;
  prices: Prices;
  send: Send;
  /** Base URL of the gateways of a region. */
  gatewayOf: (region: string) => Promise<string>;
  /** Authorizes calls for one project. */
  tokenFor: (projectId: string) => Promise<string>;
  log: Logger;
  /** More new invocations wait than this server may run now. */
  onBacklog?: () => void;
  leaseMs?: number;
  /** Most invocations in progress here. */
  window?: number;
  retryMs?: number;
}

export interface Worker extends AsyncDisposable {
  /** Call it when invocations may wait. @param isNew this server has just stored some: others hear of those that it cannot run */
  kick(isNew?: boolean): void;
  /** Renews the leases of what is in progress here. */
  renewLeases(): Promise<void>;
  /** Returns what other servers have left behind to the queue, and fails what has had all of its attempts. */
  sweep(): Promise<void>;
  /** Leases nothing any more. Resolves when what is in progress has ended. */
  drain(): Promise<void>;
  /** Invocations in progress here. */
  readonly inFlight: number;
}

interface Running {
  invocation: LeasedInvocation;
  /** Ends the call: another server owns the invocation, or this one stops. */
  controller: AbortController;
}

export function createWorker(options: WorkerOptions): Worker {
  const {
    database,
    prices,
    send,
    gatewayOf,
    tokenFor,
    log,
    onBacklog,
    leaseMs = LEASE_MS,
    window = SERVER_WINDOW,
    retryMs = RETRY_MS,
  } = options;
  const stop = new AbortController();
  let isDraining = false;
  const budget = new PayloadBudget();
  const recorder = createRecorder(database.pool, prices, log);
  /** By invocation; of one that was lost and leased again, the newest attempt. */
  const running = new Map<string, Running>();
  /** Settles with the renewals of leases that are under way. */
  let renewing: Promise<unknown> = Promise.resolve();
  const perFunction = new Map<string, number>();
  const inFlight = new InFlight(window);
  const { places } = inFlight;
  let timer: NodeJS.Timeout | undefined;
  /** This server has stored invocations since the last pass. */
  let hasNew = false;
  /** More may wait than were leased: it is worth looking when something ends. */
  let hasBacklog = false;
  /** The last function that a pass considered before all places were taken: the next pass continues after it. */
  let cursor: string | null = null;
  /** Regions whose gateways were not reached: nothing is leased before this time, on the monotonic clock. */
  const notBefore = new Map<string, number>();

  const windowOf = ({ max_concurrency: concurrency, max_instances: instances }: WaitingFunction): number =>
    instances === null || concurrency === null
      ? FUNCTION_WINDOW
      : Math.min(FUNCTION_WINDOW, Math.max(FUNCTION_WINDOW_MIN, 2 * instances * concurrency));

  /** Organizations share the places, and each function may take half of what its organization may. */
  function share(functions: readonly WaitingFunction[]): Map<string, number> {
    const wanted = new Map<string, number>();
    const planned: string[] = [];
    for (const one of functions) {
      if ((notBefore.get(one.region) ?? 0) > performance.now()) continue;
      const bound = windowOf(one) - (perFunction.get(one.id) ?? 0);
      const most = Math.min(bound, Math.ceil(places.mayTakeCount(one.org_id) / 2));
      if (most <= 0) continue;
      wanted.set(one.id, most);
      for (let count = 0; count < most; count++) {
        places.take(one.org_id);
        planned.push(one.org_id);
      }
    }
    // They are taken by what is leased.
    for (const orgId of planned) places.release(orgId);
    return wanted;
  }

  /** Looks at all functions once, from the cursor on. */
  async function pass(signal: AbortSignal): Promise<void> {
    let isFromStart = cursor === null;
    hasBacklog = false;
    for (;;) {
      const functions = await waitingFunctions(database.pool, cursor, FUNCTIONS_PER_PASS);
      const wanted = share(functions);
      const leased = await lease(database.pool, wanted, leaseMs);
      const counts = Map.groupBy(leased, (one) => one.function_id);
      hasBacklog ||= functions.some(({ id }) => (wanted.get(id) ?? 0) <= (counts.get(id)?.length ?? 0));
      for (const invocation of leased) start(invocation);
      if (functions.length === FUNCTIONS_PER_PASS) cursor = functions.at(-1)?.id ?? null;
      else {
        cursor = null;
        if (isFromStart) return;
        isFromStart = true;
      }
      if (signal.aborted || inFlight.size >= window) return;
    }
  }

  const loop = createWorkLoop({
    async step(signal) {
      const isNew = hasNew;
      hasNew = false;
      try {
        await pass(signal);
      } finally {
        if (isNew && hasBacklog) onBacklog?.();
      }
    },
    // The next poll tries again.
    onError: (error) => log.error({ err: error }, 'invocations could not be leased'),
  });

  /** Leases nothing of this region for a while. */
  function pauseRegion(region: string, reason: string): void {
    // Once for all that were about to be sent.
    if ((notBefore.get(region) ?? 0) <= performance.now())
      log.warn({ region, reason }, 'invocations cannot be sent to a gateway now');
    notBefore.set(region, performance.now() + UNREACHED_MS);
    clearTimeout(timer);
    timer = setTimeout(() => loop.kick(), UNREACHED_MS + 1);
  }

  function start(invocation: LeasedInvocation): void {
    const { id, function_id: functionId, org_id: orgId } = invocation;
    const one: Running = { invocation, controller: new AbortController() };
    if (stop.signal.aborted) one.controller.abort();
    // An earlier attempt, which this server has lost: its end would not be recorded.
    running.get(id)?.controller.abort();
    running.set(id, one);
    perFunction.set(functionId, (perFunction.get(functionId) ?? 0) + 1);
    const work = async (): Promise<void> => {
      await run(one).catch((error: unknown) =>
        log.error({ err: error, invocation: id }, 'an invocation could not be ended'),
      );
    };
    inFlight.run(orgId, work, () => {
      if (running.get(id) === one) running.delete(id);
      const left = (perFunction.get(functionId) ?? 1) - 1;
      if (left === 0) perFunction.delete(functionId);
      else perFunction.set(functionId, left);
      if (hasBacklog) loop.kick();
    });
  }

  async function run(one: Running): Promise<void> {
    const { invocation, controller } = one;
    const { signal } = controller;
    const outcome = await perform(invocation, signal).catch(
      // The database or the keys are not available: nothing was sent.
      (error: unknown): SendOutcome => ({
        kind: 'unsent',
        error: error instanceof Error ? error.message : String(error),
      }),
    );
    // Another server owns it.
    if (outcome === undefined || (signal.aborted && !stop.signal.aborted)) return;
    if (outcome.kind === 'ended') await end(invocation, outcome);
    else if (outcome.kind === 'unsent') {
      if (!stop.signal.aborted) pauseRegion(invocation.region, outcome.error);
      if (Date.now() - invocation.queued_at.getTime() < UNSENT_MAX_MS)
        await INVOCATIONS.giveBack(database.pool, [invocation]);
      else await end(invocation, failure(`no gateway took it within a day: ${outcome.error}`));
    } else if (invocation.attempt >= ATTEMPTS_MAX) await end(invocation, exhaustion(outcome.error, outcome));
    else {
      await chargeAttempt(invocation, outcome);
      log.warn(
        { invocation: invocation.id, attempt: invocation.attempt, reason: outcome.error },
        'an invocation is retried',
      );
      // No renewal of its lease may follow on the time of the next attempt.
      if (running.get(invocation.id) === one) running.delete(invocation.id);
      await renewing;
      const wait = stop.signal.aborted ? 0 : Math.min(RETRY_MAX_MS, retryMs * 2 ** (invocation.attempt - 1));
      await INVOCATIONS.renew(database.pool, [invocation], wait);
    }
  }

  /** The time of a broken attempt costs as any other. If the server dies here, what the gateway has reported is charged. */
  async function chargeAttempt(invocation: LeasedInvocation, served: Served): Promise<void> {
    const { id, queued_at: queuedAt, function_id: functionId, attempt } = invocation;
    const { durationMs, version, cold } = served;
    if (durationMs === null || version === null) return;
    const servedBy = await versionId(functionId, version);
    if (servedBy === null) return;
    await chargeRunning(database.pool, prices, [
      {
        id,
        queuedAt,
        functionId,
        versionId: servedBy,
        version,
        source: 'invoke',
        attempt,
        startedAt: new Date(Date.now() - durationMs),
        elapsedMs: durationMs,
        cold: cold ?? false,
      },
    ]);
  }

  async function perform(
    invocation: LeasedInvocation,
    signal: AbortSignal,
  ): Promise<SendOutcome | undefined> {
    const { id, name, size, region, project_id: projectId, org_id: orgId } = invocation;
    const isLarge = invocation.body === null;
    const release = isLarge ? await budget.take(orgId, size, signal) : () => undefined;
    try {
      const body = invocation.body ?? (await readBody(database.pool, id));
      // Another attempt has ended it.
      if (body === undefined) return undefined;
      invocation.body = null;
      const timeoutMs = (invocation.timeout_s ?? TIMEOUT_S) * 1000;
      return await send({
        gateway: await gatewayOf(region),
        token: await tokenFor(projectId),
        id,
        attempt: invocation.attempt,
        name,
        contentType: invocation.content_type,
        headers: invocation.headers ?? {},
        body,
        timeoutMs,
        // Those before it may take as long each.
        deadlineMs: FUNCTION_WINDOW * timeoutMs + SLACK_MS,
        signal,
        onSent: release,
      });
    } finally {
      release();
    }
  }

  async function end(
    invocation: ExhaustedInvocation & Partial<LeasedInvocation>,
    ended: Ended,
  ): Promise<void> {
    const { id, queued_at: queuedAt, function_id: functionId, source, attempt } = invocation;
    const { status, durationMs, cold, error, result } = ended;
    const version = ended.version ?? (durationMs === null ? null : (invocation.version ?? null));
    const finishedAt = new Date();
    const recorded = await recorder.record({
      id,
      queuedAt,
      functionId,
      versionId: version === null ? null : await versionId(functionId, version),
      version,
      source,
      status,
      attempt,
      startedAt: durationMs === null ? null : new Date(finishedAt.getTime() - durationMs),
      finishedAt,
      durationMs,
      cold,
      error,
      result,
    });
    if (!recorded)
      log.info({ invocation: id, attempt }, 'an attempt has ended that another one has replaced');
  }

  async function versionId(functionId: string, version: number): Promise<string | null> {
    return (await queryOne(database.pool, VERSION_ID, [functionId, version]))?.id ?? null;
  }

  async function renewLeases(): Promise<void> {
    const renewed = [...running.values()];
    const renewal = INVOCATIONS.renew(
      database.pool,
      renewed.map(({ invocation }) => invocation),
      leaseMs,
    );
    renewing = Promise.allSettled([renewing, renewal]);
    const owned = await renewal;
    for (const one of renewed) {
      const { invocation, controller } = one;
      // One that has ended meanwhile is not running any more.
      if (owned.has(INVOCATIONS.keyOf(invocation)) || running.get(invocation.id) !== one) continue;
      controller.abort();
    }
  }

  return {
    kick(isNew = false) {
      if (stop.signal.aborted) return;
      hasNew ||= isNew;
      // Others run what this server still stores.
      if (isDraining && isNew) onBacklog?.();
      loop.kick();
    },
    async drain() {
      isDraining = true;
      clearTimeout(timer);
      await loop.close();
      if (hasBacklog || hasNew) onBacklog?.();
      await inFlight.settled();
    },
    get inFlight() {
      return inFlight.size;
    },
    renewLeases,
    async sweep() {
      // After a pause of this process, what it runs looks like what others have left behind.
      await renewLeases();
      for (const lost of await exhausted(database.pool, ATTEMPTS_MAX, EXHAUSTED_BATCH))
        await end(lost, exhaustion('the servers that ran it have ended before it had'));
      if ((await INVOCATIONS.requeue(database.pool, ATTEMPTS_MAX)) > 0) loop.kick();
    },
    async [Symbol.asyncDispose]() {
      stop.abort();
      clearTimeout(timer);
      await loop.close();
      await inFlight.settled(CLOSE_MS);
      for (const { controller } of running.values()) controller.abort();
      recorder.close();
      await inFlight.settled();
    },
  };
}

const NOT_SERVED: Served = { durationMs: null, cold: null, version: null };

const failure = (error: string, { durationMs, cold, version }: Served = NOT_SERVED): Ended => ({
  kind: 'ended',
  status: 'failed',
  error,
  result: null,
  durationMs,
  cold,
  version,
});

/** @param last what is known of the last attempt */
const exhaustion = (reason: string, last?: Served): Ended =>
  failure(`it was tried ${ATTEMPTS_MAX} times: ${reason}`, last);
