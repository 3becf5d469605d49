/** `rlp host join-settings`: what another machine needs to become a host of this deployment. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { CliError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { releapHome } from '../settings.ts';
import { type Context, print, printJson, remark } from '../terminal.ts';
import { placeToJoin } from './join-place.ts';
import { makeJoinToken } from './join-tokens.ts';

export interface JoinSettingsOptions {
  controlUrl?: string;
  /** The join token of the deployment instead of one for this machine. */
  shared?: boolean;
}

export async function joinSettings(context: Context, options: JoinSettingsOptions): Promise<number> {
  const { controlUrl, fingerprint } = await placeToJoin(context, options.controlUrl);
  const settings = {
    RELEAP_CONTROL_URL: controlUrl,
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
