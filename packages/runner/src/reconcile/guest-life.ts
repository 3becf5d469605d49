import type { Logger } from 'pino';
import { GuestError } from '../guest/index.ts';
import type { GuestClient, GuestConfig } from '../guest/index.ts';
import type { RunningVm } from '../machine/index.ts';
import { DEADLINES_MS } from '../vmm/tuning.ts';
import type { AgentConnection } from './agent-connection.ts';
import { freshness } from './guest-config.ts';
import type { SandboxEvents } from './sandbox-host.ts';

/** Message to a guest that resumes as a sandbox. */
export interface IdentityUpdate {
  hostname: string;
  machineId: string;
  trust?: string;
  /** Unchanged if it is not known. */
  env?: Record<string, string>;
}

/** A guest that has received the message answers by then, unless the machine is hopelessly overloaded. */
const HEARD_DEADLINE_MS = 15_000;
/** Clearing the input of a slow guest may end the session again. */
const RENEWALS_MAX = 3;
/** Codes of requests that the guest has not received. */
const LOST: ReadonlySet<string> = new Set(['timeout', 'disconnected', 'protocol']);
/** After the grace period of its processes, a guest has this long to flush its dirty pages and power off. */
const SHUTDOWN_DEADLINE_MS = 30_000;
const POWER_OFF_DEADLINE_MS = 5_000;

/** Reports spontaneous events of a VM. @returns a promise that rejects when the VM has ended */
export function watch(running: RunningVm, events: SandboxEvents): Promise<never> {
  running.vm.onUnblocked(() => events.onClockOff());
  const died = Promise.withResolvers<never>();
  died.promise.catch(() => undefined);
  running.vm.onExit((reason) => {
    died.reject(new Error(reason));
    events.onExit({ reason, guestEnd: running.vm.guestEnd });
  });
  return died.promise;
}

/** Configures a blank guest as a sandbox. @returns the duration of each step, in microseconds */
export async function configure(
  guest: GuestClient,
  config: GuestConfig,
  signal: AbortSignal,
  log: Logger,
): Promise<unknown> {
  const boots = config.volumes !== undefined;
  const options = { signal, deadlineMs: boots ? DEADLINES_MS.bootAndConfigure : DEADLINES_MS.configure };
  const { reservedBytes, timingsUs } = await guest.configure(config, options);
  const { reserveBytes: asked = 0 } = config;
  // The limit of the VMM's cgroup relies on it: if the guest used the reserved memory, the host's OOM killer would end it.
  if (reservedBytes < asked)
    log.warn({ asked, reserved: reservedBytes }, 'the guest reserved too little memory');
  return timingsUs;
}

/**
 * Gives a restored guest its own identity: clock, random seed, host name, environment. Its processes resume after that.
 */
export async function renewIdentity(
  guest: GuestClient,
  identity: IdentityUpdate,
  { deadlineMs = DEADLINES_MS.renewIdentity, signal }: { deadlineMs?: number; signal?: AbortSignal } = {},
): Promise<void> {
  const options = { deadlineMs, ...(signal && { signal }) };
  const { clockNs } = await guest.reconfigure({ ...identity, ...freshness() }, options);
  await guest.setClock(clockNs, options);
}

/**
 * The same for a guest that has just been restored and may not receive the first message: if it was captured in the
 * middle of a frame, it waits for the rest. Then the message is sent again on a connection that clears its input.
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

/** Resolves when the guest has ended its processes and powered off. */
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
      // The power-off may have overtaken the answer.
      cause = error;
    }),
  ]);
  const cut = Promise.withResolvers<never>();
  const timer = setTimeout(
    () => cut.reject(new Error('the guest did not power off', { cause })),
    POWER_OFF_DEADLINE_MS,
  );
  const onAbort = (): void => cut.reject(new Error('the wait was cancelled'));
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    signal.throwIfAborted();
    await Promise.race([off, cut.promise]);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', onAbort);
  }
}
