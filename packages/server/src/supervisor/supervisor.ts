import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { lockFile } from '@releap/database';
import type { Config } from '../config/config.ts';
import { previewUrlOf, toolboxUrlOf, urlHost, withoutPassword } from '../config/config.ts';
import { LogAggregator } from '../log/log-aggregator.ts';
import { BUILD_DIR, PROGRAM } from '../paths.ts';
import { ensureTokens, TOKEN_VARIABLES } from '../tokens.ts';
import { localUrl, readyBanner } from './banner.ts';
import { keepPostgres } from './keep-postgres.ts';
import { assertRoot } from '../roles/root.ts';
import { ManagedProcess } from './managed-process.ts';
import { sendToParent } from './messages.ts';
import { claimPort, preferPort, PREVIEW_PORT_OFFSET, SSH_PORT_OFFSET } from './ports.ts';

/** How long each process may take to stop. */
const DEADLINES_MS = { gateway: 10_000, runner: 60_000, control: 15_000 };
const EARLIER_PARTS_MS = 30_000;
/** Longer than an answer of `/healthz` is repeated. */
const STALE_HEALTH_MS = 400;
const HEALTH_POLL_MS = 200;
const HEALTH_PATIENCE_MS = 60_000;
/** A terminal sends Ctrl-C to all its processes, and npm forwards it: one key press is more than one signal. */
const SAME_PRESS_MS = 1_500;

/**
 * The all-in-one service: PostgreSQL, control plane, runner and gateway as child processes, in the foreground until a
 * signal. If the supervisor dies, they exit too; sandboxes survive that and the next start finds them again.
 * @returns the exit code
 */
export async function runAll(config: Config): Promise<number> {
  assertRoot();
  const began = performance.now();
  const signals = listenForSignals();
  const logs = new LogAggregator(config.home, config.log);
  const log = logs.logger('releap');
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => logs.close());
  cleanup.defer(() => signals.close());

  await mkdir(config.home, { recursive: true, mode: 0o700 });
  const lock = await lockFile(path.join(config.home, 'lock'), `process ${process.pid}, port ${config.port}`);
  if ('heldBy' in lock) {
    throw new Error(
      `RELEAP_HOME=${config.home} is in use by another server (${lock.heldBy}). ` +
        'Stop that one, or start this one with another RELEAP_HOME and RELEAP_PORT.',
    );
  }
  cleanup.use(lock);

  await untilEarlierPartsEnded(config.home);
  const port = await claimPort(config.host, config.port, 'RELEAP_PORT');
  const gatewayPort =
    config.gatewayPort === undefined
      ? await preferPort(config.host, port + 1)
      : await claimPort(config.host, config.gatewayPort, 'RELEAP_GATEWAY_PORT');
  const previewPort =
    config.previewPort === undefined
      ? await preferPort(config.host, port + PREVIEW_PORT_OFFSET)
      : await claimPort(config.host, config.previewPort, 'RELEAP_PREVIEW_PORT');
  const sshPort =
    config.ssh.port === undefined
      ? await preferPort(config.ssh.host, port + SSH_PORT_OFFSET)
      : await claimPort(config.ssh.host, config.ssh.port, 'RELEAP_SSH_PORT', 'RELEAP_SSH_HOST');
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
  const previewTls = config.previewTls && {
    ...config.previewTls,
    port: await claimPort(config.host, config.previewTls.port, 'RELEAP_PREVIEW_TLS_PORT'),
  };
  const previewUrl = previewUrlOf(previewTls === undefined ? config : { ...config, previewTls }, previewPort);
  await ensureTokens(config);

  let databaseUrl = config.databaseUrl;
  let database = databaseUrl === undefined ? '' : `database ${withoutPassword(databaseUrl)}`;
  if (databaseUrl === undefined) {
    const dir = path.join(config.home, 'postgres');
    const postgres = await keepPostgres(dir, path.join(BUILD_DIR, 'postgresql'), logs.logger('postgres'));
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
    RELEAP_SSH_PORT: String(sshPort),
    RELEAP_PREVIEW_PORT: String(previewPort),
    RELEAP_PUBLIC_URL: apiUrl,
    RELEAP_TOOLBOX_URL: toolboxUrl,
    ...(previewUrl === undefined ? {} : { RELEAP_PREVIEW_URL: previewUrl }),
    ...(previewTls === undefined ? {} : { RELEAP_PREVIEW_TLS_PORT: String(previewTls.port) }),
    RELEAP_INTERNAL_PORT: String(internalPort),
    RELEAP_CONTROL_URL: localUrl(config.internalHost, internalPort),
    DATABASE_URL: databaseUrl,
    ...(identityPort === undefined ? {} : { RELEAP_IDENTITY_PORT: String(identityPort) }),
  };
  const part = (role: keyof typeof DEADLINES_MS): ManagedProcess =>
    new ManagedProcess({
      role,
      program: PROGRAM,
      env: without(env, HIDDEN[role]),
      logs,
      log,
      cleanupOnStop: role === 'runner',
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
    await untilHealthy(
      localUrl(config.host, port),
      () => parts.runner.isLinked,
      signals.aborted,
      (problem) => log.warn(`not ready yet: ${problem}`),
    );
    return runner ?? {};
  })();
  ready.catch(() => undefined);
  const outcome = await Promise.race([ready, signals.first]);
  if (outcome !== undefined) {
    logs.say(
      readyBanner(
        config,
        {
          seconds: (performance.now() - began) / 1000,
          apiUrl,
          toolboxUrl,
          ...(previewUrl === undefined ? {} : { previews: previewForm(previewUrl, previewTls?.source) }),
          ssh: `ssh -p ${sshPort} ID@${urlHost(config.ssh.host)}`,
          issuer:
            config.oidc.issuer ??
            `${localUrl(LOOPBACK, identityPort ?? 0)} (development: no passwords, this machine only)`,
          database,
          accelerator: outcome['accelerator'] ?? '',
          vmm: outcome['vmm'] ?? '',
        },
        logs.color,
      ),
    );
    sendToParent({ type: 'started', facts: {} });
    await signals.first;
  }
  const keep = config.keepSandboxes && signals.isTermination();
  logs.say(
    keep
      ? '\nstopping: sandboxes continue, and the next start takes them over'
      : '\nstopping: sandboxes end, state stays (Ctrl-C again to stop at once)',
  );
  signals.onSecond(() => {
    log.warn('stopped at once; the next start cleans up the rest');
    for (const one of all) one.kill();
  });
  // Ingress first; then sandboxes, while control can still record their end; the database last.
  const orderly = await Promise.all([
    parts.gateway.stop(DEADLINES_MS.gateway, keep),
    parts.runner.stop(DEADLINES_MS.runner, keep),
  ]);
  orderly.push(await parts.control.stop(DEADLINES_MS.control, keep));
  return orderly.every(Boolean) ? 0 : 1;
}

const { operator, metrics, gateway, join } = TOKEN_VARIABLES;
const STORE_CREDENTIALS = ['RELEAP_STORE_S3_ACCESS_KEY_ID', 'RELEAP_STORE_S3_SECRET_ACCESS_KEY'];
/** No process of the service needs it. */
const BACKUP_PASSPHRASE = 'RELEAP_BACKUP_PASSPHRASE';
/** Variables that a compromised process must not have. */
const HIDDEN: Record<keyof typeof DEADLINES_MS, readonly string[]> = {
  control: [BACKUP_PASSPHRASE],
  runner: [operator, metrics, gateway, 'DATABASE_URL', BACKUP_PASSPHRASE, ...STORE_CREDENTIALS],
  gateway: [operator, metrics, join, 'DATABASE_URL', BACKUP_PASSPHRASE, ...STORE_CREDENTIALS],
};

function without(
  env: Record<string, string | undefined>,
  names: readonly string[],
): Record<string, string | undefined> {
  return Object.fromEntries(Object.entries(env).filter(([name]) => !names.includes(name)));
}

function previewForm(base: string, source: string | undefined): string {
  const hint = source === 'dev' ? '   (clients have to trust the root: rlp preview-ca)' : '';
  return `${base.replace('://', '://PORT-ID.')}${hint}`;
}

const LOOPBACK = '127.0.0.1';
/** Offset of the port, away from those of other services on the machine. */
const IDENTITY_PORT_OFFSET = 10_000;

/** Fixed for the run: it is part of the issuer's URL. */
async function claimIdentityPort(configured: number | undefined, wanted: number): Promise<number> {
  return configured === undefined
    ? await preferPort(LOOPBACK, wanted)
    : await claimPort(LOOPBACK, configured, 'RELEAP_IDENTITY_PORT');
}

/** After a sudden death of the supervisor its processes exit by themselves, and hold their ports until then. */
async function untilEarlierPartsEnded(home: string): Promise<void> {
  const folder = path.join(home, 'run');
  await mkdir(folder, { recursive: true, mode: 0o700 });
  for (const role of Object.keys(DEADLINES_MS)) {
    const lock = await lockFile(path.join(folder, `${role}.lock`), 'the supervisor', EARLIER_PARTS_MS);
    if ('heldBy' in lock) throw new Error(`the ${role} of an earlier run does not exit: ${lock.heldBy}`);
    await lock.release();
  }
}

/**
 * Polls `/healthz` until a sandbox can be created; logs now and then why it cannot. After a kill -9 of the whole service the
 * control plane still takes the runner for ready, until the new one connects: that answer does not count.
 */
async function untilHealthy(
  base: string,
  isLinked: () => boolean,
  stopped: AbortSignal,
  complain: (problem: string) => void,
): Promise<void> {
  // The control plane gives the same answer for a quarter of a second.
  let staleUntil = 0;
  for (let patience = Date.now() + HEALTH_PATIENCE_MS; !stopped.aborted; await sleep(HEALTH_POLL_MS)) {
    let problem = 'the runner has no link to the control plane';
    const wasLinked = isLinked();
    try {
      const answer = await fetch(`${base}/healthz`, { signal: AbortSignal.timeout(5_000) });
      const text = await answer.text();
      if (answer.status !== 200) problem = `${answer.status} ${text.slice(0, 500)}`;
      else if (!wasLinked) staleUntil = Date.now() + STALE_HEALTH_MS;
      else if (Date.now() > staleUntil) return;
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
  /** Resolves at the first SIGINT, SIGTERM or SIGHUP, or when the parent process has exited. */
  first: Promise<undefined>;
  /** Aborted at the same time. */
  aborted: AbortSignal;
  /** Whether that was SIGTERM. */
  isTermination(): boolean;
  /** Called at a later signal that is not from the same key press. */
  onSecond(action: () => void): void;
  close(): void;
}

function listenForSignals(): Signals {
  const controller = new AbortController();
  const first = Promise.withResolvers<undefined>();
  let at = 0;
  let isTermination = false;
  let second: () => void = () => undefined;
  const onStopRequest = (name?: NodeJS.Signals): void => {
    if (at === 0) {
      at = performance.now();
      isTermination = name === 'SIGTERM';
      controller.abort();
      first.resolve(undefined);
    } else if (performance.now() - at > SAME_PRESS_MS) second();
  };
  const names = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  for (const name of names) process.on(name, onStopRequest);
  // A parent with an IPC channel (`npm start`) wants this process to end with it.
  process.on('disconnect', onStopRequest);
  process.channel?.unref();
  return {
    first: first.promise,
    aborted: controller.signal,
    isTermination: () => isTermination,
    onSecond: (action) => {
      second = action;
    },
    close: () => {
      for (const name of names) process.off(name, onStopRequest);
      process.off('disconnect', onStopRequest);
    },
  };
}
