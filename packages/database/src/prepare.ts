import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from 'pino';
import { newClient } from './connection.ts';
import { isDatabaseUnavailable } from './failures.ts';
import { checkHistory, migrate, readApplied } from './migrate.ts';
import { readMigrations } from './migrations.ts';
import { assertOwnSession } from './session-check.ts';

export interface PrepareOptions {
  url: string;
  log: Logger;
  /** `start`: migrates. `wait`: waits until another process has migrated, without a deadline. Default `start`. */
  migrations?: 'start' | 'wait' | undefined;
  /** Ends the wait. */
  signal?: AbortSignal | undefined;
}

const POLL_MS = 1_000;
const REMIND_MS = 60_000;

/**
 * Makes sure that a server can use the database: sessions are its own, and the schema is that of this version, or a newer one that this
 * version can run on.
 * @throws PoolerError; an error when the schema is incompatible; the signal's reason
 */
export async function prepareDatabase(options: PrepareOptions): Promise<void> {
  const { url, log, migrations = 'start', signal } = options;
  if (migrations === 'wait') await untilMigrated(url, log, signal);
  else {
    await assertOwnSession(url);
    await migrate({ url, log });
  }
}

async function untilMigrated(url: string, log: Logger, signal: AbortSignal | undefined): Promise<void> {
  let complaint: string | undefined;
  let complainedAt = 0;
  let isChecked = false;
  for (;;) {
    signal?.throwIfAborted();
    let waitsFor: string;
    try {
      if (!isChecked) await assertOwnSession(url);
      isChecked = true;
      const missing = await missingMigrations(url, log);
      if (missing === undefined) return;
      waitsFor = `migration ${missing} is missing: run "releap migrate"`;
    } catch (error) {
      if (!isDatabaseUnavailable(error)) throw error;
      waitsFor = (error as Error).message;
    }
    if (waitsFor !== complaint || performance.now() - complainedAt > REMIND_MS) {
      log.info({ reason: waitsFor }, 'waiting for the schema of the database');
      complaint = waitsFor;
      complainedAt = performance.now();
    }
    await sleep(POLL_MS, undefined, { signal }).catch(() => undefined);
  }
}

/** The first migration that has not been applied; undefined when there is none. */
async function missingMigrations(url: string, log: Logger): Promise<string | undefined> {
  const known = await readMigrations();
  const client = newClient(url, {
    connectionTimeoutMillis: 5_000,
    query_timeout: 5_000,
    application_name: 'releap-migrate',
  });
  client.on('error', () => undefined);
  try {
    await client.connect();
    const applied = await readApplied(client);
    checkHistory(applied, known, log);
    const next = known[applied.length];
    return next && `${next.id} (${next.name})`;
  } finally {
    await client.end().catch(() => undefined);
  }
}
