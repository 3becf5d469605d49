/** Which service to talk to, and as whom: flags, then the environment, then what a server on this machine wrote down. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
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
}

export const DEFAULT_HOME = '/var/lib/releap';

export function releapHome(env: Context['terminal']['env']): string {
  return env['RELEAP_HOME'] || DEFAULT_HOME;
}

export function loadSettings(context: Context): Settings {
  const { env } = context.terminal;
  const givenUrl = context.options.url ?? env['RELEAP_URL'];
  const apiKey = context.options.apiKey ?? env['RELEAP_API_KEY'];
  const url = givenUrl ? checkUrl(givenUrl) : undefined;
  if (url && apiKey) return { url, apiKey: checkKey(apiKey) };

  const path = join(releapHome(env), 'bootstrap.json');
  const found = readBootstrap(path);
  if (typeof found === 'string') {
    throw new CliError(
      `no ${url ? 'API key' : 'service'} is configured: set RELEAP_URL and RELEAP_API_KEY, or start a server on this ` +
        `machine (npm start). ${found}`,
      { exitCode: EXIT.unavailable },
    );
  }
  const local = checkUrl(found.base_url);
  // A key of this machine's server must not be told to another one.
  if (url && url !== local)
    throw new CliError(
      `no API key is configured for ${url}: set RELEAP_API_KEY (the key in ${path} is for ${local})`,
      {
        exitCode: EXIT.unavailable,
      },
    );
  return { url: local, apiKey: checkKey(apiKey ?? found.api_key) };
}

/** What a server of this machine wrote down, or a sentence on why that is not known. */
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
      return { base_url: value.base_url, api_key: value.api_key };
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
  // What cannot stand in a header would otherwise fail later, with a message that shows the key.
  if (/^[\x21-\x7e]+$/.test(text)) return text;
  throw usageError('the API key has characters that no key has: copy it again');
}
