import { mkdir } from 'node:fs/promises';
import { hostname } from 'node:os';
import path from 'node:path';
import { lockFile } from '@releap/database';
import { traceIds } from '@releap/tracing';
import type { Logger } from 'pino';
import type { Config } from '../config/config.ts';
import { roleLogger } from '../log/role-logger.ts';
import { sendToParent, type SupervisorMessage } from '../supervisor/messages.ts';

/** The process of an earlier run may still be exiting. */
const LOCK_PATIENCE_MS = 30_000;
/** Sandboxes are not stopped: the process only detaches from them. */
const DETACH_DEADLINE_MS = 15_000;

export interface RoleContext {
  config: Config;
  log: Logger;
  /** Part of the all-in-one service, whose supervisor set ports and database. */
  supervised: boolean;
  /** Aborted when the process is to end, also while it starts. */
  stopping: AbortSignal;
}

export interface RunningRole {
  /** Shown to the user: address, versions. */
  facts: Record<string, string>;
  /** Resolves when the control plane knows this process. Only of the runner. */
  linked?: Promise<void>;
  /** The whole service stops: clean up. */
  stop(): Promise<void>;
  /** Only this process ends, another takes over: leave sandboxes running. */
  detach(): Promise<void>;
  /** How long `detach` waits for open requests at most, in milliseconds. */
  drainMs?: number;
  /** At a second signal: `detach` waits no longer. */
  hurry?: () => void;
}

/**
 * Runs one role as this process: until the supervisor asks it to stop or exits, or, without a supervisor, until a signal.
 * @param supervised whether a supervisor started it, over an IPC channel
 */
export async function runRole(
  role: string,
  config: Config,
  supervised: boolean,
  start: (context: RoleContext) => Promise<RunningRole>,
): Promise<void> {
  const { traces } = config;
  const { log, flush } = roleLogger(
    role,
    config.log.level,
    supervised,
    traces === undefined ? undefined : traceIds,
  );
  const exit = (code: number): never => {
    flush();
    // Connections and timers of libraries must not keep a process that has finished.
    process.exit(code);
  };
  const end = (how: () => Promise<void>, deadlineMs?: number): void => {
    if (deadlineMs !== undefined) setTimeout(() => exit(1), deadlineMs);
    how().then(
      () => exit(0),
      (error: unknown) => {
        log.error({ err: error }, `${role} did not stop cleanly`);
        exit(1);
      },
    );
  };

  // A rejection that nothing handles is a defect. It must not end the process that agents and streams of all guests hang on.
  let unhandled = 0;
  process.on('unhandledRejection', (error: unknown) => {
    unhandled += 1;
    log.error({ err: error, count: unhandled }, `${role} has not handled a failure`);
  });
  let ending = false;
  let running: RunningRole | undefined;
  const stopping = new AbortController();
  /** A start that was ended has cleaned up. */
  const unlessEnded = (error: unknown): undefined => {
    if (error !== stopping.signal.reason) throw error;
  };
  const starting = startLocked(role, { config, log, supervised, stopping: stopping.signal }, start);
  const once = (how: () => void) => (): void => {
    if (ending) return;
    ending = true;
    stopping.abort(new Error('the process is to end'));
    how();
  };
  // A half-started role is like a killed one, which is always safe; but the runner then leaves networks on the machine.
  const detach = once(() =>
    end(
      async () => {
        const half = role === 'runner' ? [] : [Promise.resolve(undefined)];
        await (await Promise.race([starting, ...half]).catch(unlessEnded))?.detach();
      },
      DETACH_DEADLINE_MS + (running?.drainMs ?? 0),
    ),
  );
  process.once('disconnect', () => {
    // No supervisor is left to kill a stop that takes too long.
    setTimeout(() => exit(1), DETACH_DEADLINE_MS);
    detach();
  });
  // The supervisor may have died while this program was being loaded.
  if (supervised && !process.connected) detach();
  for (const signal of ['SIGTERM', 'SIGINT'] as const)
    process.on(signal, () => (ending ? running?.hurry?.() : detach()));
  process.on('message', (message: SupervisorMessage) => {
    if (message.type === 'stop') once(() => end(async () => (await starting.catch(unlessEnded))?.stop()))();
  });

  try {
    running = await starting;
    sendToParent({ type: 'started', facts: running.facts });
    void running.linked?.then(() => sendToParent({ type: 'linked' }));
    log.debug(running.facts, `${role} started`);
  } catch (error) {
    if (ending) return;
    const message = explain(error);
    sendToParent({ type: 'failed', message });
    if (supervised) log.debug({ err: error }, `${role} cannot start`);
    else log.fatal({ err: error }, `${role} cannot start`);
    ending = true;
    setTimeout(() => exit(1), 50);
  }
}

async function startLocked(
  role: string,
  context: RoleContext,
  start: (context: RoleContext) => Promise<RunningRole>,
): Promise<RunningRole> {
  const { config } = context;
  const folder = path.join(config.home, 'run');
  await mkdir(folder, { recursive: true, mode: 0o700 });
  // Never two processes of a role on one home, also while the previous one is still exiting.
  const lock = await lockFile(path.join(folder, `${role}.lock`), `process ${process.pid}`, LOCK_PATIENCE_MS);
  if ('heldBy' in lock) throw new Error(`another ${role} is running in ${config.home}: ${lock.heldBy}`);
  if (config.traces === undefined) return await start(context);
  const { startTracing } = await import('@releap/tracing/sdk');
  const service = { service: `releap-${role}`, instance: `${hostname()}:${config.home}` };
  const traces = startTracing({ ...config.traces, ...service, log: context.log });
  const running = await start(context);
  /** Its last spans are sent when it has ended. */
  const thenSend = (end: () => Promise<void>) => async (): Promise<void> => {
    try {
      await end();
    } finally {
      await traces[Symbol.asyncDispose]();
    }
  };
  return {
    ...running,
    stop: thenSend(() => running.stop()),
    detach: thenSend(() => running.detach()),
  };
}

/** An error and what caused it, in one line. */
export function explain(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { cause } = error;
  return cause instanceof Error && !error.message.includes(cause.message)
    ? `${error.message}: ${explain(cause)}`
    : error.message;
}
