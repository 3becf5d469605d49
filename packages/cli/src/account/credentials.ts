/**
 * What `rlp` remembers of a signed-in user: `credentials.json` in the user's configuration folder, readable by that
 * user alone. A change replaces the whole file at once, and only one process changes it at a time.
 */
import { mkdirSync, readFileSync, rmSync, statSync, writeFileSync, renameSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { CliError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import type { Terminal } from '../terminal.ts';

/** A sign-in at one service. */
export interface Session {
  issuer: string;
  client_id: string;
  /** What the management plane takes. */
  token: string;
  /** RFC 3339; when the token ends. */
  expires_at: string;
  refresh_token?: string;
  user: { id: string; email: string };
  /** The project in use, for commands on sandboxes; a key in `keys`. */
  project?: string;
  /** API keys that were made for this machine, by the id of their project. */
  keys?: Record<string, ProjectKey>;
}

export interface ProjectKey {
  /** Id of the key. */
  id: string;
  api_key: string;
  name: string;
  org_id: string;
}

export interface Credentials {
  /** URL of the service that was signed in to last. */
  current?: string;
  /** By the service's URL. */
  services: Record<string, Session>;
}

const LOCK_MS = 30_000;
const STALE_MS = 60_000;

export function credentialsPath(env: Terminal['env']): string {
  const folder = env['XDG_CONFIG_HOME'] || join(env['HOME'] || '/', '.config');
  return join(folder, 'releap', 'credentials.json');
}

/** Nothing remembered when there is no file. */
export function readCredentials(env: Terminal['env']): Credentials {
  const path = credentialsPath(env);
  let text: string;
  try {
    const { mode } = statSync(path);
    if ((mode & 0o077) !== 0)
      throw unusable(`${path} may be read by others: chmod 600 it, and sign in again if they may have`);
    text = readFileSync(path, 'utf8');
  } catch (error) {
    if (error instanceof CliError) throw error;
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') return { services: {} };
    throw unusable(`${path} cannot be read (${code})`);
  }
  // The text of a parse error would show a piece of a token.
  const value = parsed(text);
  if (value === undefined)
    throw unusable(`${path} is not what rlp login writes: delete it and sign in again`);
  return value;
}

function parsed(text: string): Credentials | undefined {
  try {
    const value = JSON.parse(text) as Partial<Credentials> | null;
    if (typeof value !== 'object' || value === null || typeof value.services !== 'object') return undefined;
    const services = Object.entries(value.services).filter(
      ([, session]) => typeof session?.token === 'string',
    );
    return {
      ...(typeof value.current === 'string' ? { current: value.current } : {}),
      services: Object.fromEntries(services),
    };
  } catch {
    return undefined;
  }
}

function unusable(message: string): CliError {
  return new CliError(message, { exitCode: EXIT.unavailable });
}

/**
 * Reads, lets `change` do its work on what is there now, and writes what it leaves. Others who want to change it wait
 * for that, so that a refresh token that is good once is used once.
 */
export async function changeCredentials<T>(
  env: Terminal['env'],
  change: (credentials: Credentials) => T | Promise<T>,
): Promise<T> {
  const path = credentialsPath(env);
  try {
    mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  } catch (error) {
    throw unwritable(path, error);
  }
  const lock = `${path}.lock`;
  await takeLock(lock, path);
  try {
    const credentials = readCredentials(env);
    const result = await change(credentials);
    try {
      writeFileSync(`${path}.new`, `${JSON.stringify(credentials, null, 2)}\n`, { mode: 0o600, flush: true });
      renameSync(`${path}.new`, path);
    } catch (error) {
      throw unwritable(path, error);
    }
    return result;
  } finally {
    rmSync(lock, { force: true });
  }
}

async function takeLock(lock: string, path: string): Promise<void> {
  const until = performance.now() + LOCK_MS;
  for (;;) {
    try {
      writeFileSync(lock, `${process.pid}\n`, { flag: 'wx', mode: 0o600 });
      return;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw unwritable(path, error);
    }
    // Left behind by a process that was killed.
    const since = statSync(lock, { throwIfNoEntry: false })?.mtimeMs;
    if (since !== undefined && Date.now() - since > STALE_MS) rmSync(lock, { force: true });
    else if (performance.now() > until)
      throw unusable(
        `another rlp has been changing ${path} for ${LOCK_MS / 1000} s; if none runs, delete ${lock}`,
      );
    else await sleep(50);
  }
}

function unwritable(path: string, error: unknown): CliError {
  return new CliError(`${path} cannot be written (${(error as NodeJS.ErrnoException).code})`, {
    exitCode: EXIT.unavailable,
    cause: error,
  });
}
