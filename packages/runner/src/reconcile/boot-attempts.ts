/** Boots a guest once more if its machine ends before it has booted. */
import type { Logger } from 'pino';
import type { SandboxEvents } from './sandbox-host.ts';

const CONSOLE_TAIL = 2_000;

export interface BootAttempt {
  events: SandboxEvents;
  onConsole: (chunk: Buffer) => void;
  /** The guest's kernel prints what it does. */
  verbose: boolean;
}

export interface BootAttemptsOptions {
  /** Whether the guest boots, instead of being restored. */
  boots: boolean;
  events: SandboxEvents;
  onConsole: (chunk: Buffer) => void;
  /** Removes the machine of a failed attempt. */
  clear: () => Promise<void>;
  signal: AbortSignal;
  log: Logger;
}

/**
 * Few boots end right after the firmware where KVM itself is virtualised, for a reason of the outer machine. The second boot prints what the
 * kernel does; what both have printed is logged.
 * @param run starts the machine, and resolves once its guest is configured
 */
export async function bootAttempts<T>(
  options: BootAttemptsOptions,
  run: (attempt: BootAttempt) => Promise<T>,
): Promise<T> {
  const { boots, events, clear, signal, log } = options;
  let console = '';
  const onConsole = (chunk: Buffer): void => {
    console = (console + chunk.toString('latin1')).slice(-CONSOLE_TAIL);
    options.onConsole(chunk);
  };
  if (!boots) return await run({ events, onConsole: options.onConsole, verbose: false });
  let exit: Parameters<SandboxEvents['onExit']>[0] | undefined;
  let isUp = false;
  const held: SandboxEvents = {
    ...events,
    onExit: (ended) => {
      if (isUp) events.onExit(ended);
      else exit = ended;
    },
  };
  try {
    const result = await run({ events: held, onConsole, verbose: false });
    isUp = true;
    if (exit !== undefined) events.onExit(exit);
    return result;
  } catch (error) {
    if (exit === undefined || signal.aborted) throw error;
    log.warn({ err: error, console }, 'a guest ended while it booted; booting it once more');
  }
  console = '';
  await clear();
  try {
    return await run({ events, onConsole, verbose: true });
  } catch (error) {
    log.warn({ err: error, console }, 'a guest could not be booted in two attempts');
    throw error;
  }
}
