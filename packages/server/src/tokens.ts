/**
 * Tokens of the operator, of scrapers of metrics, of gateways and for joining: each from its variable, or from a file in the home, created on
 * first start. A file may hold several, one a line: the first is sent, all are accepted. Files are read again when they
 * change, so that a token can be rotated while the service runs.
 */
import { randomBytes } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { makePrivateFile, readIfThere, writePrivateFile } from '@releap/certificates/private-file';
import type { ControlTokens, TokenSet } from '@releap/control';
import type { Logger } from 'pino';
import type { Config } from './config/config.ts';

export const TOKEN_KINDS = ['operator', 'metrics', 'gateway', 'join'] as const;
export type TokenKind = (typeof TOKEN_KINDS)[number];

/** Variables that hold a token, for the environment of processes that must not have it. */
export const TOKEN_VARIABLES: Record<TokenKind, string> = {
  operator: 'RELEAP_OPERATOR_TOKEN',
  metrics: 'RELEAP_METRICS_TOKEN',
  gateway: 'RELEAP_GATEWAY_TOKEN',
  join: 'RELEAP_JOIN_TOKEN',
};

const TOKEN = /^[A-Za-z0-9_-]{43,1024}$/;
/** Interval at which a file is checked. */
const LOOK_MS = 1_000;

export function tokenFile(config: Pick<Config, 'home'>, kind: TokenKind): string {
  return path.join(config.home, `${kind}.token`);
}

/** Creates absent files of tokens without a variable. */
export async function ensureTokens(config: Config): Promise<void> {
  for (const kind of TOKEN_KINDS) {
    if (config.tokens[kind] !== undefined) continue;
    const file = tokenFile(config, kind);
    await makePrivateFile(file, `${newToken()}\n`);
    parse(file, await readFile(file, 'utf8'));
  }
}

/** Replaces a token: the old one is invalid a second later. @returns the file */
export async function rotateToken(config: Config, kind: TokenKind): Promise<string> {
  if (config.tokens[kind] !== undefined)
    throw new Error(`${TOKEN_VARIABLES[kind]} is set: change its value and start the servers again`);
  const file = tokenFile(config, kind);
  await writePrivateFile(file, `${newToken()}\n`);
  return file;
}

/** All that a control server accepts. `ensureTokens` comes first. */
export function acceptedTokens(config: Config, log: Logger): ControlTokens {
  const set = (kind: TokenKind): TokenSet => {
    const given = config.tokens[kind];
    return given === undefined ? watched(tokenFile(config, kind), log) : () => [given];
  };
  return {
    operator: set('operator'),
    metrics: set('metrics'),
    gateway: set('gateway'),
    join: set('join'),
  };
}

/** The token to show; undefined when this home has none. */
export async function tokenToShow(config: Config, kind: TokenKind): Promise<string | undefined> {
  const given = config.tokens[kind];
  if (given !== undefined) return given;
  const file = tokenFile(config, kind);
  const text = await readIfThere(file);
  return text === undefined ? undefined : parse(file, text)[0];
}

const newToken = (): string => randomBytes(32).toString('base64url');

function watched(file: string, log: Logger): TokenSet {
  let tokens: readonly string[] = [];
  let stamp = '';
  let nextLook = 0;
  return () => {
    const now = performance.now();
    if (now < nextLook) return tokens;
    nextLook = now + LOOK_MS;
    try {
      const { mtimeMs, ino, size } = statSync(file);
      const found = `${mtimeMs} ${ino} ${size}`;
      if (found !== stamp) {
        tokens = parse(file, readFileSync(file, 'utf8'));
        stamp = found;
      }
    } catch (error) {
      // A file that is away for a moment ends nothing; one that cannot be read must be noticed.
      if (stamp !== 'unreadable') log.error({ err: error, file }, 'a token file cannot be read');
      stamp = 'unreadable';
    }
    return tokens;
  };
}

function parse(file: string, text: string): readonly string[] {
  const tokens = text.split(/\s+/).filter((line) => line !== '');
  if (tokens.length === 0 || !tokens.every((token) => TOKEN.test(token)))
    throw new Error(`${file} holds no token: each line needs at least 43 characters of A-Z a-z 0-9 _ -`);
  return tokens;
}
