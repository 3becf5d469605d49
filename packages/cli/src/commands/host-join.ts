/** `rlp host join-settings`: what another machine needs to become a host of this deployment. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { openOperator } from '../operator.ts';
import { isLoopback, readBootstrap, releapHome } from '../settings.ts';
import { type Context, print, printJson, remark } from '../terminal.ts';
import { makeJoinToken } from './join-tokens.ts';

export interface JoinSettingsOptions {
  controlUrl?: string;
  /** The join token of the deployment instead of one for this machine. */
  shared?: boolean;
}

export async function joinSettings(context: Context, options: JoinSettingsOptions): Promise<number> {
  const url = options.controlUrl ?? internalUrl(context);
  if (!/^https:\/\/[^\s/?#@]+\/?$/.test(url))
    throw usageError(`--control-url ${url} must be https://host:port`);
  const { fingerprint } = await openOperator(context).api.getHostAuthority({});
  const settings = {
    RELEAP_CONTROL_URL: url,
    RELEAP_CONTROL_FINGERPRINT: fingerprint,
    RELEAP_JOIN_TOKEN: options.shared ? sharedToken(context) : await newToken(context),
  };
  if (context.options.json) printJson(context, settings);
  else
    print(
      context,
      Object.entries(settings)
        .map(([name, value]) => `${name}=${value}`)
        .join('\n'),
    );
  return EXIT.ok;
}

/** Where the service of this machine listens for others. */
function internalUrl({ terminal: { env } }: Context): string {
  const path = join(releapHome(env), 'bootstrap.json');
  const found = readBootstrap(path);
  const url = typeof found === 'string' ? undefined : found.internal_url;
  if (url === undefined || isLoopback(url))
    throw new CliError(
      'other machines cannot reach the internal listener of this one: start the service with RELEAP_INTERNAL_HOST, the address of this ' +
        'machine in the network between them, or name the listener with --control-url',
      { exitCode: EXIT.unavailable },
    );
  return url.replace(/^http:/, 'https:');
}

async function newToken(context: Context): Promise<string> {
  const { token, expires_at } = await makeJoinToken(context, { name: 'rlp host join-settings' });
  remark(context, `one host may join with it, until ${expires_at}`);
  return token;
}

function sharedToken({ terminal: { env } }: Context): string {
  const path = join(releapHome(env), 'join.token');
  try {
    const token = env['RELEAP_JOIN_TOKEN'] || (readFileSync(path, 'utf8').trim().split(/\n/, 1)[0] ?? '');
    if (token !== '') return token;
  } catch {
    // Said below.
  }
  throw new CliError(`there is no join token in ${path}, which only the user of the service may read`, {
    exitCode: EXIT.unavailable,
  });
}
