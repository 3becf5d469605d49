/** Waits until a resource is as it was asked to be. All fail with the reason that the service gives. */
import {
  SANDBOX_STATUS_FACTS,
  SANDBOX_STATUS_GROUPS,
  type FunctionVersionRecord,
  type InvocationRecord,
  type JobRecord,
  type SandboxRecord,
  type SandboxStatus,
  type SnapshotRecord,
} from '@releap/contract/wire';
import { pause } from './deadline.ts';
import { hasStatus, ReleapError } from './error.ts';
import { pages } from './pages.ts';
import type { Service } from './service.ts';

export interface WaitOptions<S extends string = string> {
  /** Milliseconds for the whole wait. */
  deadlineMs: number;
  /** Called with the status each time that it is read. */
  onStatus?: (status: S) => void;
}

/** How long one long poll lasts, in milliseconds; the service allows 60 s, proxies between often less. */
const POLL_MS = 25_000;
/** Short enough that each status which people watch (`building`, `booting`) is seen. */
const WATCHED_POLL_MS = 2_000;
/** Extra time for a response beyond the requested poll, in milliseconds. */
const POLL_SLACK_MS = 15_000;
/** Between polls of a service that answers at once without a change. */
const EARLY_MS = 200;

export interface Polled<T, R> {
  /** @param timeoutMs how long the service may wait for a change; 0 the first time */
  read: (timeoutMs: number) => Promise<T>;
  /** What is waited for; undefined while it may still come. @throws when it will not come */
  result: (record: T) => R | undefined;
  /** After the deadline, as `sandbox x is still booting`. */
  describe: (record: T) => string;
  /** What continues in the background; default: it. */
  work?: string;
  /** Pause between reads, in milliseconds; absent where the service waits for changes (a long poll). */
  intervalMs?: number;
  /** Longest long poll. */
  pollMs?: number;
}

/** @throws ReleapError `pending` after the deadline */
export async function poll<T, R>(
  signal: AbortSignal,
  deadlineMs: number,
  { read, result, describe, work = 'it', intervalMs, pollMs = POLL_MS }: Polled<T, R>,
): Promise<R> {
  const until = performance.now() + deadlineMs;
  for (let timeoutMs = 0; ; ) {
    const asked = performance.now();
    const record = await read(timeoutMs);
    const found = result(record);
    if (found !== undefined) return found;
    const left = until - performance.now();
    if (left <= 0)
      throw new ReleapError(
        'pending',
        `${describe(record)} after ${Math.round(deadlineMs / 1000)} s; ${work} continues in the background`,
      );
    if (intervalMs !== undefined) await pause(intervalMs, signal);
    else if (timeoutMs > 0 && performance.now() - asked < EARLY_MS / 2) await pause(EARLY_MS, signal);
    timeoutMs = Math.round(Math.min(left, pollMs));
  }
}

/** Waits until it runs. @throws ReleapError when it ends instead */
export async function waitUntilRunning(
  service: Service,
  id: string,
  options: WaitOptions<SandboxStatus>,
): Promise<SandboxRecord> {
  const isOver = (status: SandboxStatus): boolean => SANDBOX_STATUS_FACTS[status].endsWait;
  const record = await waitForSandbox(service, id, { wait: 'running' }, options, isOver);
  if (record.status === 'running') return record;
  throw ended(record);
}

/** Waits until it is deleted. */
export async function waitUntilDeleted(
  service: Service,
  id: string,
  options: WaitOptions<SandboxStatus>,
): Promise<void> {
  try {
    await waitForSandbox(service, id, { wait_exact: 'deleted' }, options, () => false);
  } catch (error) {
    if (!hasStatus(error, 404, 'sandbox_not_found')) throw error;
  }
}

/** What a change may pass through on the way to `wanted`; anything else means that it will not come. */
export interface Change {
  wanted: SandboxStatus;
  passing: readonly SandboxStatus[];
}

/** Waits until a requested change is done. @throws ReleapError when the sandbox is back, or has ended elsewhere */
export async function waitUntilChanged(
  service: Service,
  id: string,
  { wanted, passing }: Change,
  options: WaitOptions<SandboxStatus>,
): Promise<SandboxRecord> {
  const isOver = (status: SandboxStatus): boolean => !passing.includes(status);
  const record = await waitForSandbox(service, id, { wait_exact: wanted }, options, isOver);
  if (record.status === wanted) return record;
  throw ended(record, `, and not ${wanted}`);
}

/**
 * Waits until a fork runs or is paused, as its source was when its state was taken. One that is paused with a reason
 * was to run and could not.
 */
export async function waitUntilForked(
  service: Service,
  id: string,
  likely: 'running' | 'paused',
  options: WaitOptions<SandboxStatus>,
): Promise<SandboxRecord> {
  const isOver = (status: SandboxStatus): boolean => !SANDBOX_STATUS_GROUPS.forking.includes(status);
  const record = await waitForSandbox(service, id, { wait_exact: likely }, options, isOver);
  if (record.status === 'running' || (record.status === 'paused' && !record.error)) return record;
  throw ended(record);
}

function ended({ id, status, error }: SandboxRecord, instead = ''): ReleapError {
  const now = status === 'failed' ? 'has failed' : `is ${status}${instead}`;
  return new ReleapError('failed', `sandbox ${id} ${now}${error ? `: ${error}` : ''}`);
}

function waitForSandbox(
  { api, signal }: Service,
  id: string,
  target: { wait?: SandboxStatus; wait_exact?: SandboxStatus },
  { deadlineMs, onStatus }: WaitOptions<SandboxStatus>,
  isOver: (status: SandboxStatus) => boolean,
): Promise<SandboxRecord> {
  const final: readonly SandboxStatus[] = [target.wait ?? target.wait_exact ?? 'deleted', 'failed', 'lost'];
  return poll(signal, deadlineMs, {
    read: (timeoutMs) => api.getSandbox(...longPoll({ id }, target, timeoutMs)),
    result: (record) => {
      onStatus?.(record.status);
      return final.includes(record.status) || isOver(record.status) ? record : undefined;
    },
    describe: ({ status }) => `sandbox ${id} is still ${status}`,
    ...(onStatus && { pollMs: WATCHED_POLL_MS }),
  });
}

function longPoll<P, Q>(params: P, target: Q, timeoutMs: number) {
  return [
    { params, ...(timeoutMs > 0 && { query: { ...target, timeout_ms: timeoutMs } }) },
    timeoutMs > 0 ? { timeoutMs: timeoutMs + POLL_SLACK_MS } : {},
  ] as const;
}

/** Waits until a snapshot is ready. */
export function waitUntilReady(
  { api, signal }: Service,
  id: string,
  { deadlineMs, onStatus }: WaitOptions<SnapshotRecord['status']>,
): Promise<SnapshotRecord> {
  return poll(signal, deadlineMs, {
    read: (timeoutMs) => api.getSnapshot(...longPoll({ id }, { wait: 'ready' as const }, timeoutMs)),
    result: (record) => {
      const { status, name, error } = record;
      onStatus?.(status);
      if (status === 'failed')
        throw new ReleapError('failed', `snapshot ${name} has failed: ${error ?? NO_REASON}`);
      return status === 'ready' ? record : undefined;
    },
    describe: ({ name, status }) => `snapshot ${name} is still ${status}`,
  });
}

const NO_REASON = 'no reason was given';

/** Waits until a build is done. */
export async function waitForBuild(
  { api, signal }: Service,
  jobId: string,
  { deadlineMs, onStatus }: WaitOptions<JobRecord['status']>,
): Promise<void> {
  await poll(signal, deadlineMs, {
    read: () => api.getJob({ params: { id: jobId } }),
    result: (job) => {
      onStatus?.(job.status);
      if (job.status === 'failed') throw buildFailure(job);
      return job.status === 'done' ? job : undefined;
    },
    describe: ({ status }) => `the build is still ${status}`,
    intervalMs: 1_000,
  });
}

/** The reason, and the last lines of the log unless they were printed. */
export function buildFailure({ error }: JobRecord, options: { logPrinted?: boolean } = {}): ReleapError {
  const text = error ?? NO_REASON;
  return new ReleapError('failed', `the build failed: ${options.logPrinted ? text.split('\n', 1)[0] : text}`);
}

/** Waits until a version of a function can serve. */
export function waitForVersion(
  { api, signal }: Service,
  name: string,
  version: number,
  { deadlineMs, onStatus }: WaitOptions<FunctionVersionRecord['template_state']>,
): Promise<FunctionVersionRecord> {
  return poll(signal, deadlineMs, {
    read: async () => {
      const all = pages(({ query }) => api.listFunctionVersions({ params: { name }, query }), 'versions');
      for await (const one of all) if (one.version === version) return one;
      throw new ReleapError('failed', `function ${name} has no version ${version} any more`);
    },
    result: (record) => {
      const { template_state: state, template_error: reason } = record;
      onStatus?.(state);
      if (state === 'failed')
        throw new ReleapError('failed', `version ${version} of ${name} cannot serve: ${reason ?? NO_REASON}`);
      return state === 'published' ? record : undefined;
    },
    describe: ({ template_state: state }) => `version ${version} of ${name} is still ${state}`,
    intervalMs: 500,
  });
}

/** Waits until an invocation has ended, however long that takes: the service ends it. */
export function waitUntilDone({ api, signal }: Service, id: string): Promise<InvocationRecord> {
  return poll(signal, Number.POSITIVE_INFINITY, {
    read: () => api.getInvocation({ params: { id } }),
    result: (record) => (record.done ? record : undefined),
    describe: ({ status }) => `invocation ${id} is still ${status}`,
    intervalMs: 500,
  });
}
