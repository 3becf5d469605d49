/**
 * Which service to talk to, and as whom: flags, then the environment, then the project that a signed-in user has chosen,
 * then what a server on this machine wrote down.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { readCredentials } from './account/credentials.ts';
import { CliError, usageError } from './cli-error.ts';
import { EXIT } from './exit-codes.ts';
import type { Context } from './terminal.ts';

export interface Settings {
  /** Without a final slash. */
  url: string;
  apiKey: string;
}

export interface Bootstrap {
  base_url: string;
  api_key: string;
  /** Where the operator's commands go; a server of an earlier version writes none. */
  internal_url?: string;
}

export const DEFAULT_HOME = '/var/lib/releap';

export function releapHome(env: Context['terminal']['env']): string {
  return env['RELEAP_HOME'] || DEFAULT_HOME;
}

/** Service and key for commands on sandboxes. */
export function loadSettings(context: Context): Settings {
  const { env } = context.terminal;
  const givenUrl = context.options.url ?? env['RELEAP_URL'];
  const apiKey = context.options.apiKey ?? env['RELEAP_API_KEY'];
  const url = givenUrl ? checkUrl(givenUrl) : undefined;
  if (url && apiKey) return { url, apiKey: checkKey(apiKey) };

  const used = projectInUse(env, url);
  if (used) return { url: used.url, apiKey: checkKey(apiKey ?? used.apiKey) };
  const path = join(releapHome(env), 'bootstrap.json');
  const found = readBootstrap(path);
  if (typeof found === 'string') {
    throw new CliError(
      `no ${url ? 'API key' : 'service'} is configured: set RELEAP_URL and RELEAP_API_KEY, choose a project with ` +
        `rlp login and rlp project use, or start a server on this machine (npm start). ${found}`,
      { exitCode: EXIT.unavailable },
    );
  }
  const local = checkUrl(found.base_url);
  // A key of this machine's server must not be sent to another one.
  if (url && url !== local)
    throw new CliError(
      `no API key is configured for ${url}: set RELEAP_API_KEY, or choose a project with rlp project use (the key in ${path} is for ${local})`,
      { exitCode: EXIT.unavailable },
    );
  return { url: local, apiKey: checkKey(apiKey ?? found.api_key) };
}

/** Of that service, or of the one that was signed in to last. */
function projectInUse(
  env: Context['terminal']['env'],
  url: string | undefined,
): { url: string; apiKey: string } | undefined {
  const { current, services } = readCredentials(env);
  const service = url ?? current;
  const session = service === undefined ? undefined : services[service];
  const key = session?.keys?.[session.project ?? ''];
  return service === undefined || key === undefined ? undefined : { url: service, apiKey: key.api_key };
}

/** The service for commands of a signed-in user: as above, but without a key. */
export function findService(context: Context): string {
  const { env } = context.terminal;
  const given = context.options.url ?? env['RELEAP_URL'];
  if (given) return checkUrl(given);
  const { current } = readCredentials(env);
  if (current !== undefined) return current;
  const found = readBootstrap(join(releapHome(env), 'bootstrap.json'));
  if (typeof found !== 'string') return checkUrl(found.base_url);
  throw new CliError(`no service is configured: name it with --url or RELEAP_URL. ${found}`, {
    exitCode: EXIT.unavailable,
  });
}

/** The bootstrap file of this machine's server, or the reason why it cannot be read. */
export function readBootstrap(path: string): Bootstrap | string {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'EACCES') return `${path} is there but may not be read by this user.`;
    return code === 'ENOENT' ? `There is no ${path}.` : `${path} cannot be read (${code}).`;
  }
  try {
    const value = JSON.parse(text) as Partial<Bootstrap>;
    if (typeof value.base_url === 'string' && typeof value.api_key === 'string')
      return {
        base_url: value.base_url,
        api_key: value.api_key,
        ...(typeof value.internal_url === 'string' ? { internal_url: value.internal_url } : {}),
      };
  } catch {
    // Said below: the text of a parse error would show a piece of the key.
  }
  return `${path} is not what a server writes: it needs base_url and api_key.`;
}

/** Without a final slash; a usage error when it cannot be the URL of a service. */
export function checkUrl(text: string): string {
  const url = URL.parse(text);
  if (!url || (url.protocol !== 'http:' && url.protocol !== 'https:'))
    throw usageError(`the service's URL must be http:// or https://, but was ${JSON.stringify(text)}`);
  if (url.username || url.password || url.search || url.hash)
    throw usageError(
      "the service's URL must have no user, query or fragment: the key goes into RELEAP_API_KEY",
    );
  return `${url.origin}${url.pathname}`.replace(/\/+$/, '');
}

function checkKey(text: string): string {
  // A value that is invalid in a header would fail later, with a message that contains the key.
  if (/^[\x21-\x7e]+$/.test(text)) return text;
  throw usageError('the API key has characters that no key has: copy it again');
}

/** Whether requests to that URL stay on this machine. */
export function isLoopback(url: string): boolean {
  const { hostname } = new URL(url);
  return hostname === 'localhost' || hostname === '[::1]' || /^127(\.\d{1,3}){3}$/.test(hostname);
}
