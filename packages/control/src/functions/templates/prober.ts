/**
 * Tries pending versions: one instance is started, and when its handler listens, the version can serve. The instance is deleted
 * afterwards. Progress is in rows, so that any server continues after another one.
 */
import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { FunctionTemplates } from './templates.ts';
import type { HostClient } from '../../fleet/runners/host-client.ts';
import type { FunctionInstances } from '../instances/instances.ts';
import type { Logger } from 'pino';
import { ApiError } from '@releap/contract';
import { InFlight } from '../../platform/work/in-flight.ts';
import { createWorkLoop } from '../../platform/work/work-loop.ts';
import type { TargetEnd } from '../../edge/gateways/target-resolver.ts';
import { pinned } from '../../compute/sandboxes/assignment.ts';
import { InstanceEnded, type RunningInstance } from '../instances/instance-watch.ts';
import type { LeaseHolder } from '../instances/instances.ts';
import { createVersionStates } from '../versions/version-states.ts';
import { dueVersions, readSandbox, recordCapture, type DueVersion } from './attempts.ts';
import { HandlerError, waitUntilListening } from './handler.ts';

/** Versions that one server tries at a time, shared by organizations. */
const CONCURRENT = 8;
/** Of these, those of organizations whose newest try has failed within this time, in milliseconds; one each. */
const CONCURRENT_FAILING = 3;
const FAILING_MS = 600_000;
/** Versions without a server that one pass looks at. */
const BATCH = 32;
/** Pause before a version is tried again that had no capacity or credits, or whose host failed, in milliseconds. */
const RETRY_MS = 5_000;
/** The same before another capture of a version that serves, on the same host; it doubles with each failure. */
const CAPTURE_RETRY = { retryMs: 60_000, longestMs: 6 * 3_600_000 };
/** How long a version may wait for capacity and for credits, in milliseconds. */
const CAPACITY_MS = 3_600_000;
/** What it waits for, by the status of the refusal. */
const WAITS: Readonly<Record<number, string>> = { 402: 'were no credits', 429: 'was no capacity' };

export interface Prober extends AsyncDisposable {
  /** Begins with versions that no server tries, or that need another template. */
  sweep(): Promise<void>;
}

/** A lease that this server keeps. */
class OwnLease implements LeaseHolder {
  readonly #lost = new AbortController();
  readonly signal: AbortSignal;
  #onEnd: ((how: TargetEnd) => void) | undefined;

  constructor(stop: AbortSignal) {
    this.signal = AbortSignal.any([stop, this.#lost.signal]);
  }

  revoke(): void {
    this.#lost.abort(new Error('another server tries this version'));
  }

  onEnd(ended: (how: TargetEnd) => void): void {
    this.#onEnd = ended;
  }

  end(how: TargetEnd): void {
    this.#onEnd?.(how);
  }
}

export function createProber({
  changes,
  database,
  events,
  functionTemplates,
  hosts,
  instances,
  limits,
  log,
  serverId,
}: {
  changes: ChangeNotifier;
  database: Database;
  events: EventBus;
  functionTemplates: FunctionTemplates;
  hosts: HostClient;
  instances: FunctionInstances;
  limits: { functionListenMs: number };
  log: Logger;
  serverId: string;
}): Prober {
  const states = createVersionStates(database, events);
  const stop = new AbortController();
  const trying = new Set<string>();
  const inFlight = new InFlight(CONCURRENT);
  const { places } = inFlight;
  /** Organizations whose newest version did not listen, until when, on the monotonic clock. */
  const failing = new Map<string, number>();
  /** When a version may be tried again, on the monotonic clock. */
  const notBefore = new Map<string, number>();

  /** Also ends when the instance does: its function may have been deleted. */
  async function untilListening(instance: RunningInstance, port: number, signal: AbortSignal): Promise<void> {
    const over = new AbortController();
    const both = AbortSignal.any([signal, over.signal]);
    const outcomes = [
      waitUntilListening(hosts, instance, port, limits.functionListenMs, both),
      instances.ended(instance.sandboxId, serverId, both),
    ];
    try {
      await Promise.race(outcomes);
    } finally {
      over.abort();
      await Promise.allSettled(outcomes);
    }
  }

  async function attempt(version: DueVersion): Promise<void> {
    const sandboxId = await instances.probe(version, serverId, stop.signal);
    if (sandboxId === undefined) return;
    const lease = new OwnLease(stop.signal);
    instances.keep(sandboxId, serverId, lease);
    try {
      const instance = await instances.running(sandboxId, serverId, lease.signal);
      await untilListening(instance, version.port, lease.signal);
      const warning =
        version.snapshot_kind === 'fn_ready'
          ? await functionTemplates.capture(version.id, sandboxId, lease.signal)
          : null;
      const sandbox = await readSandbox(database.pool, sandboxId);
      if (version.snapshot_kind === 'fn_ready' && typeof sandbox?.runner_id === 'string')
        await recordCapture(
          database.pool,
          { versionId: version.id, runnerId: sandbox.runner_id },
          warning === null ? 'captured' : CAPTURE_RETRY,
        );
      if (version.template_state === 'published') {
        if (warning === null) await states.captured(version.id);
        else log.warn({ version: version.id, reason: warning }, 'a version that serves was not captured');
        return lease.end('discarded');
      }
      await states.publish(version.id, {
        warning,
        ...(sandbox === undefined ? {} : { root: pinned(sandbox) }),
      });
    } catch (error) {
      // Another server continues with the instance.
      if (lease.signal.aborted) return lease.end('disconnected');
      lease.end('discarded');
      throw error;
    }
    lease.end('discarded');
  }

  async function decide(version: DueVersion, error: unknown): Promise<void> {
    const { id, age_ms: ageMs, capture_on: runnerId } = version;
    if (version.template_state === 'published') {
      if (runnerId !== null) await recordCapture(database.pool, { versionId: id, runnerId }, CAPTURE_RETRY);
      log.warn({ err: error, version: id }, 'no template could be made of a version that serves');
      return;
    }
    if (error instanceof HandlerError) {
      await states.fail(id, error.message);
    } else if (error instanceof InstanceEnded && error.state.status === 'failed' && error.status !== 429) {
      await states.fail(id, `its first instance failed: ${error.state.error ?? 'no reason was given'}`);
    } else if (error instanceof ApiError && WAITS[error.status] !== undefined && ageMs > CAPACITY_MS) {
      await states.fail(id, `there ${WAITS[error.status]} to try it: ${error.message}`);
    } else {
      notBefore.set(id, performance.now() + RETRY_MS);
      const isBroke = error instanceof ApiError && error.status === 402;
      log[isBroke ? 'debug' : 'warn'](
        { err: error, version: id },
        'a version of a function could not be tried; retrying',
      );
    }
  }

  async function tryVersion(version: DueVersion): Promise<void> {
    const { org_id: orgId } = version;
    try {
      await attempt(version).then(
        () => failing.delete(orgId),
        (error: unknown) => {
          if (
            error instanceof HandlerError ||
            (error instanceof InstanceEnded && error.state.status === 'failed')
          )
            failing.set(orgId, performance.now() + FAILING_MS);
          return decide(version, error);
        },
      );
    } catch (error) {
      log.error({ err: error, version: version.id }, 'the outcome of a try was not stored; retrying');
    } finally {
      changes.changed([version.id]);
    }
  }

  async function begin(): Promise<void> {
    if (trying.size >= CONCURRENT) return;
    const now = performance.now();
    for (const [id, at] of notBefore) if (at <= now) notBefore.delete(id);
    for (const [orgId, until] of failing) if (until <= now) failing.delete(orgId);
    for (const version of await dueVersions(database.pool, serverId, [...notBefore.keys()], BATCH)) {
      if (stop.signal.aborted || trying.size >= CONCURRENT) return;
      const { id, org_id: orgId } = version;
      if (trying.has(id) || notBefore.has(id)) continue;
      if (!mayTry(orgId)) continue;
      trying.add(id);
      inFlight.run(
        orgId,
        () => tryVersion(version),
        () => trying.delete(id),
      );
    }
  }

  /** Handlers that do not listen hold a place for minutes: organizations that deploy them have few. */
  function mayTry(orgId: string): boolean {
    if (!places.mayTake(orgId)) return false;
    if (!failing.has(orgId)) return true;
    const busy = [...places.held.keys()].filter((other) => failing.has(other));
    return !busy.includes(orgId) && busy.length < CONCURRENT_FAILING;
  }

  const loop = createWorkLoop({
    step: begin,
    onError: (error) => log.warn({ err: error }, 'the try of a version is delayed'),
  });
  events.on('versions-pending', () => loop.kick());

  return {
    sweep: loop.sweep,
    async [Symbol.asyncDispose]() {
      stop.abort(new Error('the server is stopping'));
      await loop.close();
      await inFlight.settled();
    },
  };
}
