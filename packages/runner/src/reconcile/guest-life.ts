import type { Logger } from 'pino';
import { GuestError } from '../guest/index.ts';
import type { GuestClient, GuestConfig } from '../guest/index.ts';
import type { RunningVm } from '../machine/index.ts';
import type { AgentConnection } from './agent-connection.ts';
import { freshness } from './guest-config.ts';
import type { SandboxEvents } from './sandbox-host.ts';

/** What a guest is told when it resumes as a sandbox. */
export interface IdentityUpdate {
  hostname: string;
  machineId: string;
  /** Left as it is where that is not known. */
  env?: Record<string, string>;
}

/** The agent mounts three disks and starts the entrypoint; seconds only on a machine that is overloaded. */
const CONFIGURE_DEADLINE_MS = 60_000;
/** Setting the clock and thawing; seconds only on a machine that is overloaded. */
const RENEW_DEADLINE_MS = 60_000;
/** A guest that has heard it has answered by then, on any machine that is not hopelessly overloaded. */
const HEARD_DEADLINE_MS = 15_000;
/** Clearing the input of a slow guest may end the session once more. */
const RENEWALS_MAX = 3;
/** How a request ends that a guest has not heard. */
const LOST: ReadonlySet<string> = new Set(['timeout', 'disconnected', 'protocol']);
/** Beyond its processes' grace, a guest may take this long to write what it has not, and then to power off. */
const SHUTDOWN_DEADLINE_MS = 30_000;
const POWER_OFF_DEADLINE_MS = 5_000;

/** Reports what happens to a VM by itself. @returns what rejects when it has ended */
export function watch(running: RunningVm, events: SandboxEvents): Promise<never> {
  running.vm.onUnblocked(() => events.onUnblocked());
  const died = Promise.withResolvers<never>();
  died.promise.catch(() => undefined);
  running.vm.onExit((reason) => {
    died.reject(new Error(reason));
    events.onExit({ reason, guestEnd: running.vm.guestEnd });
  });
  return died.promise;
}

/** Makes a blank guest a sandbox. @returns how long each step took, in microseconds */
export async function configure(
  guest: GuestClient,
  config: GuestConfig,
  signal: AbortSignal,
  log: Logger,
): Promise<unknown> {
  const options = { signal, deadlineMs: CONFIGURE_DEADLINE_MS };
  const { reservedBytes, timingsUs } = await guest.configure(config, options);
  const { reserveBytes: asked = 0 } = config;
  // The limit of the VMM's cgroup counts on it: a guest that uses the rest would be ended by the host's kernel.
  if (reservedBytes < asked)
    log.warn({ asked, reserved: reservedBytes }, 'the guest reserved too little memory');
  return timingsUs;
}

/**
 * Gives a restored guest its own identity: clock, random numbers, names, environment. The processes resume after
 * that. What it was called before changes nothing.
 */
export async function renewIdentity(
  guest: GuestClient,
  identity: IdentityUpdate,
  { deadlineMs = RENEW_DEADLINE_MS, signal }: { deadlineMs?: number; signal?: AbortSignal } = {},
): Promise<void> {
  const options = { deadlineMs, ...(signal && { signal }) };
  const { clockNs } = await guest.reconfigure({ ...identity, ...freshness() }, options);
  await guest.setClock(clockNs, options);
}

/**
 * The same for a guest that has just been restored, and may not hear what it is told first: it may be waiting for the
 * other half of what its host said when it was captured. Then it is told again, on a connection that clears its input.
 */
export async function renewRestored(
  agent: AgentConnection,
  guest: GuestClient,
  identity: IdentityUpdate,
): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    const isLast = attempt === RENEWALS_MAX;
    try {
      const client = attempt === 1 ? guest : await agent.reconnect();
      return await renewIdentity(client, identity, isLast ? {} : { deadlineMs: HEARD_DEADLINE_MS });
    } catch (error) {
      if (isLast || !(error instanceof GuestError && LOST.has(error.code))) throw error;
    }
  }
}

/** Resolves when the guest has ended its processes and itself. */
export async function powerOff(
  running: RunningVm,
  guest: GuestClient,
  graceMs: number,
  signal: AbortSignal,
): Promise<void> {
  const off = running.vm.ended(graceMs + SHUTDOWN_DEADLINE_MS + POWER_OFF_DEADLINE_MS);
  const asked = guest.shutdown({ graceMs, deadlineMs: graceMs + SHUTDOWN_DEADLINE_MS, signal });
  off.catch(() => undefined);
  let cause: unknown;
  await Promise.race([
    off,
    asked.catch((error: unknown) => {
      // Perhaps its end has overtaken its answer.
      cause = error;
    }),
  ]);
  const cut = Promise.withResolvers<never>();
  const timer = setTimeout(
    () => cut.reject(new Error('it did not power off', { cause })),
    POWER_OFF_DEADLINE_MS,
  );
  const onAbort = (): void => cut.reject(new Error('it was not waited for'));
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    signal.throwIfAborted();
    await Promise.race([off, cut.promise]);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', onAbort);
  }
}
