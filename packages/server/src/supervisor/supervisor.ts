import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { lockFile } from '@releap/database';
import type { Config } from '../config/config.ts';
import { toolboxUrlOf, withoutPassword } from '../config/config.ts';
import { LogBook } from '../log/log-book.ts';
import { BUILD_DIR, PROGRAM } from '../paths.ts';
import { ensureTokens, TOKEN_VARIABLES } from '../tokens.ts';
import { localUrl, readyBanner } from './banner.ts';
import { keepPostgres } from './keep-postgres.ts';
import { assertRoot } from '../roles/root.ts';
import { Part } from './part.ts';
import { claimPort, preferPort } from './ports.ts';

/** How long each part may take to finish when the service goes down. */
const DEADLINES_MS = { gateway: 10_000, runner: 60_000, control: 15_000 };
const EARLIER_PARTS_MS = 30_000;
const HEALTH_POLL_MS = 200;
const HEALTH_PATIENCE_MS = 60_000;
/** A terminal sends Ctrl-C to everybody in it, and npm passes it on: one press is more than one signal. */
const SAME_PRESS_MS = 1_500;

/**
 * The all-in-one service: PostgreSQL, control plane, runner and gateway as processes of their own, in the
 * foreground until a signal. Its own death, however sudden, ends them too; sandboxes survive that and are found
 * again by the next start.
 * @returns the exit code
 */
export async function runAll(config: Config): Promise<number> {
  assertRoot();
  const began = performance.now();
  const signals = listenForSignals();
  const book = new LogBook(config.home, config.log);
  const log = book.logger('releap');
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => book.close());
  cleanup.defer(() => signals.close());

  await mkdir(config.home, { recursive: true, mode: 0o700 });
  const lock = await lockFile(path.join(config.home, 'lock'), `process ${process.pid}, port ${config.port}`);
  if ('heldBy' in lock) {
    throw new Error(
      `RELEAP_HOME=${config.home} is in use by another server (${lock.heldBy}). ` +
        'Stop that one, or give this one a RELEAP_HOME and a RELEAP_PORT of its own.',
    );
  }
  cleanup.use(lock);

  await untilEarlierPartsEnded(config.home);
  const port = await claimPort(config.host, config.port, 'RELEAP_PORT');
  const gatewayPort =
    config.gatewayPort === undefined
      ? await preferPort(config.host, port + 1)
      : await claimPort(config.host, config.gatewayPort, 'RELEAP_GATEWAY_PORT');
  const internalPort =
    config.internalPort === undefined
      ? await preferPort(config.internalHost, port + 2)
      : await claimPort(
          config.internalHost,
          config.internalPort,
          'RELEAP_INTERNAL_PORT',
          'RELEAP_INTERNAL_HOST',
        );
  const identityPort =
    config.oidc.issuer === undefined
      ? await claimIdentityPort(config.identityPort, port + IDENTITY_PORT_OFFSET)
      : undefined;
  const apiUrl = config.publicUrl ?? localUrl(config.host, port);
  const toolboxUrl = config.toolboxUrl ?? toolboxUrlOf(localUrl(config.host, gatewayPort));
  await ensureTokens(config);

  let databaseUrl = config.databaseUrl;
  let database = databaseUrl === undefined ? '' : `database ${withoutPassword(databaseUrl)}`;
  if (databaseUrl === undefined) {
    const dir = path.join(config.home, 'postgres');
    const postgres = await keepPostgres(dir, path.join(BUILD_DIR, 'postgresql'), book.logger('postgres'));
    cleanup.defer(() => postgres.stop());
    databaseUrl = postgres.url;
    database = `PostgreSQL ${postgres.version}`;
  }

  const env = {
    ...process.env,
    RELEAP_HOME: config.home,
    RELEAP_CACHE: config.cacheDir,
    RELEAP_PORT: String(port),
    RELEAP_GATEWAY_PORT: String(gatewayPort),
    RELEAP_PUBLIC_URL: apiUrl,
    RELEAP_TOOLBOX_URL: toolboxUrl,
    RELEAP_INTERNAL_PORT: String(internalPort),
    RELEAP_CONTROL_URL: localUrl(config.internalHost, internalPort),
    DATABASE_URL: databaseUrl,
    ...(identityPort === undefined ? {} : { RELEAP_IDENTITY_PORT: String(identityPort) }),
  };
  const part = (role: keyof typeof DEADLINES_MS): Part =>
    new Part({
      role,
      program: PROGRAM,
      env: without(env, HIDDEN[role]),
      book,
      log,
      tidies: role === 'runner',
    });
  const parts = { control: part('control'), runner: part('runner'), gateway: part('gateway') };
  const all = Object.values(parts);
  // If the start fails, none of them stays, and sandboxes of an earlier run do. A part that has stopped is no more.
  cleanup.defer(async () => {
    await Promise.all([
      parts.gateway.stop(DEADLINES_MS.gateway, true),
      parts.runner.stop(DEADLINES_MS.runner, true),
    ]);
    await parts.control.stop(DEADLINES_MS.control, true);
  });

  const started = Promise.all(all.map((one) => one.started));
  const ready = (async () => {
    const [, runner] = await started;
    await untilHealthy(localUrl(config.host, port), signals.aborted, (problem) =>
      log.warn(`not ready yet: ${problem}`),
    );
    return runner ?? {};
  })();
  ready.catch(() => undefined);
  const outcome = await Promise.race([ready, signals.first]);
  if (outcome !== undefined) {
    book.say(
      readyBanner(
        config,
        {
          seconds: (performance.now() - began) / 1000,
          apiUrl,
          toolboxUrl,
          issuer:
            config.oidc.issuer ??
            `${localUrl(LOOPBACK, identityPort ?? 0)} (development: no passwords, this machine only)`,
          database,
          accelerator: outcome['accelerator'] ?? '',
          vmm: outcome['vmm'] ?? '',
        },
        book.color,
      ),
    );
    await signals.first;
  }
  book.say('\nstopping: sandboxes end, state stays (Ctrl-C again to cut it short)');
  signals.onSecond(() => {
    log.warn('cut short; what is left is taken away by the next start');
    for (const one of all) one.kill();
  });
  // Nothing new comes in, sandboxes end while control can still write that down, and the truth closes last.
  const orderly = await Promise.all([
    parts.gateway.stop(DEADLINES_MS.gateway),
    parts.runner.stop(DEADLINES_MS.runner),
  ]);
  orderly.push(await parts.control.stop(DEADLINES_MS.control));
  return orderly.every(Boolean) ? 0 : 1;
}

const { operator, gateway, join } = TOKEN_VARIABLES;
/** What a part must not be able to tell, should it be broken into. */
const HIDDEN: Record<keyof typeof DEADLINES_MS, readonly string[]> = {
  control: [],
  runner: [operator, gateway, 'DATABASE_URL'],
  gateway: [operator, join, 'DATABASE_URL'],
};

function without(
  env: Record<string, string | undefined>,
  names: readonly string[],
): Record<string, string | undefined> {
  return Object.fromEntries(Object.entries(env).filter(([name]) => !names.includes(name)));
}

const LOOPBACK = '127.0.0.1';
/** Out of the way of other services, whose ports people choose next to each other. */
const IDENTITY_PORT_OFFSET = 10_000;

/** Fixed for the length of the run: the issuer's name has it. */
async function claimIdentityPort(configured: number | undefined, wanted: number): Promise<number> {
  return configured === undefined
    ? await preferPort(LOOPBACK, wanted)
    : await claimPort(LOOPBACK, configured, 'RELEAP_IDENTITY_PORT');
}

/** After a sudden death of the supervisor its parts end by themselves, and hold their ports until then. */
async function untilEarlierPartsEnded(home: string): Promise<void> {
  const folder = path.join(home, 'run');
  await mkdir(folder, { recursive: true, mode: 0o700 });
  for (const role of Object.keys(DEADLINES_MS)) {
    const lock = await lockFile(path.join(folder, `${role}.lock`), 'the supervisor', EARLIER_PARTS_MS);
    if ('heldBy' in lock) throw new Error(`the ${role} of an earlier run does not end: ${lock.heldBy}`);
    await lock.release();
  }
}

/** Polls `/healthz` until a sandbox can be created; says now and then why it cannot. */
async function untilHealthy(
  base: string,
  stopped: AbortSignal,
  complain: (problem: string) => void,
): Promise<void> {
  for (let patience = Date.now() + HEALTH_PATIENCE_MS; !stopped.aborted; await sleep(HEALTH_POLL_MS)) {
    let problem: string;
    try {
      const answer = await fetch(`${base}/healthz`, { signal: AbortSignal.timeout(5_000) });
      const text = await answer.text();
      if (answer.status === 200) return;
      problem = `${answer.status} ${text.slice(0, 500)}`;
    } catch (error) {
      problem = error instanceof Error ? error.message : String(error);
    }
    if (Date.now() > patience) {
      complain(problem);
      patience = Date.now() + HEALTH_PATIENCE_MS;
    }
  }
}

interface Signals {
  /** Resolves at the first SIGINT, SIGTERM or SIGHUP, or when our starter is gone. */
  first: Promise<undefined>;
  /** Aborted at the same time. */
  aborted: AbortSignal;
  /** Called at a later one that is not the same key press. */
  onSecond(action: () => void): void;
  close(): void;
}

function listenForSignals(): Signals {
  const controller = new AbortController();
  const first = Promise.withResolvers<undefined>();
  let at = 0;
  let second: () => void = () => undefined;
  const heard = (): void => {
    if (at === 0) {
      at = performance.now();
      controller.abort();
      first.resolve(undefined);
    } else if (performance.now() - at > SAME_PRESS_MS) second();
  };
  const names = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  for (const name of names) process.on(name, heard);
  // Whoever started us over a channel (`npm start` does) wants us to end with it, however it ends.
  process.on('disconnect', heard);
  process.channel?.unref();
  return {
    first: first.promise,
    aborted: controller.signal,
    onSecond: (action) => {
      second = action;
    },
    close: () => {
      for (const name of names) process.off(name, heard);
      process.off('disconnect', heard);
    },
  };
}
