/** Waits for what becomes of a sandbox. */
import type { SandboxRecord, SandboxStatus } from '@releap/contract';
import { SANDBOX_STATUS_FACTS, SANDBOX_STATUS_GROUPS } from '@releap/contract/wire';
import { CliError } from '../cli-error.ts';
import { printable } from '../terminal.ts';
import { pause } from './pause.ts';
import { POLL_MS, POLL_SLACK_MS, type Service } from './service.ts';

export interface WaitOptions {
  /** Milliseconds for the whole wait. */
  deadlineMs: number;
  /** Told every time the status is heard of. */
  onStatus?: (status: SandboxStatus) => void;
}

/** Waits until it runs; throws when it ends instead, with the reason the service gives. */
export async function waitUntilRunning(
  service: Service,
  id: string,
  options: WaitOptions,
): Promise<SandboxRecord> {
  const record = await waitFor(service, id, { wait: 'running' }, options);
  if (record.status === 'running') return record;
  throw ended(record);
}

function ended(record: SandboxRecord): CliError {
  const why = record.error ? `: ${printable(record.error)}` : '';
  return new CliError(
    `sandbox ${record.id} ${record.status === 'failed' ? 'has' : 'is'} ${record.status}${why}`,
  );
}

/** Waits until it is deleted. */
export async function waitUntilDeleted(service: Service, id: string, options: WaitOptions): Promise<void> {
  try {
    await waitFor(service, id, { wait_exact: 'deleted' }, options);
  } catch (error) {
    if (!(error instanceof CliError && error.status === 404)) throw error;
  }
}

/** What a change may pass through on the way to `wanted`; anything else means that it will not come. */
export interface Change {
  wanted: SandboxStatus;
  passing: readonly SandboxStatus[];
}

/**
 * Waits until a change that was asked for is done; throws, with the reason the service gives, when the sandbox is
 * back where it was or has ended elsewhere.
 */
export async function waitUntilChanged(
  service: Service,
  id: string,
  change: Change,
  options: WaitOptions,
): Promise<SandboxRecord> {
  const record = await waitFor(
    service,
    id,
    { wait_exact: change.wanted },
    { ...options, isOver: (status) => !change.passing.includes(status) },
  );
  if (record.status === change.wanted) return record;
  const why = record.error ? `: ${printable(record.error)}` : '';
  throw new CliError(
    `sandbox ${record.id} ${record.status === 'failed' ? 'has failed' : `is ${record.status}, and not ${change.wanted}`}${why}`,
  );
}

/**
 * Waits until a fork runs or is paused, as its source was when its state was taken. One that is paused with a reason
 * was to run and could not.
 */
export async function waitUntilForked(
  service: Service,
  id: string,
  likely: 'running' | 'paused',
  options: WaitOptions,
): Promise<SandboxRecord> {
  const record = await waitFor(
    service,
    id,
    { wait_exact: likely },
    { ...options, isOver: (status) => !SANDBOX_STATUS_GROUPS.forking.includes(status) },
  );
  if (record.status === 'running' || (record.status === 'paused' && !record.error)) return record;
  throw ended(record);
}

async function waitFor(
  service: Service,
  id: string,
  target: { wait?: SandboxStatus; wait_exact?: SandboxStatus },
  options: WaitOptions & { isOver?: (status: SandboxStatus) => boolean },
): Promise<SandboxRecord> {
  const until = performance.now() + options.deadlineMs;
  const wanted = target.wait_exact ?? target.wait;
  let record = await service.api.getSandbox({ params: { id } });
  for (;;) {
    options.onStatus?.(record.status);
    if (
      record.status === wanted ||
      (target.wait !== undefined && SANDBOX_STATUS_FACTS[record.status].endsWait)
    )
      return record;
    if (record.status === 'failed' || record.status === 'lost' || options.isOver?.(record.status))
      return record;
    const left = until - performance.now();
    if (left <= 0)
      throw new CliError(
        `sandbox ${record.id} is still ${record.status} after ${Math.round(options.deadlineMs / 1000)} s; it continues in the background`,
      );
    const asked = performance.now();
    // Short polls, so that what people watch (`building`, `booting`) is seen to change.
    const timeout = Math.round(Math.min(left, options.onStatus ? 2_000 : POLL_MS));
    record = await service.api.getSandbox(
      { params: { id }, query: { ...target, timeout_ms: timeout } },
      { timeoutMs: timeout + POLL_SLACK_MS },
    );
    // A service that responds at once without a change must not be polled in a busy loop.
    if (record.status !== wanted && performance.now() - asked < 100) await pause(200, service.signal);
  }
}
