/**
 * What the operator of a service may do: with the token in RELEAP_OPERATOR_TOKEN, or in `operator.token` of the home,
 * which only the user of the service may read.
 */
import { operatorOperations } from '@releap/contract/wire';
import type { Client } from '@releap/sdk';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { CliError } from './cli-error.ts';
import { connectTo } from './connect.ts';
import { EXIT } from './exit-codes.ts';
import { checkUrl, isLoopback, readBootstrap, releapHome } from './settings.ts';
import type { Context } from './terminal.ts';

export interface Operator {
  readonly api: Client<typeof operatorOperations>;
}

export function openOperator(context: Context): Operator {
  const credential = operatorToken(context);
  const url = serviceOfThisMachine(context);
  return { api: connectTo(operatorOperations, { url, credential, signal: context.signal }) };
}

function operatorToken({ terminal: { env } }: Context): string {
  const path = join(releapHome(env), 'operator.token');
  let token: string;
  try {
    token = env['RELEAP_OPERATOR_TOKEN'] || (readFileSync(path, 'utf8').trim().split(/\n/, 1)[0] ?? '');
  } catch (error) {
    throw new CliError(`${refused(path, error as NodeJS.ErrnoException)} ${WHOSE}`, {
      exitCode: EXIT.unavailable,
      cause: error,
    });
  }
  // Also: a value that is invalid in a header would be shown by the later failure.
  if (!/^[\x21-\x7e]{16,1024}$/.test(token))
    throw new CliError(`${path} does not hold the token of a service`, { exitCode: EXIT.unavailable });
  return token;
}

const WHOSE =
  "This is for the service's operator: call it on the machine of the service, with its RELEAP_HOME, as the user it runs as.";

function refused(path: string, { code }: NodeJS.ErrnoException): string {
  if (code === 'EACCES' || code === 'EPERM') return `${path} may not be read by this user.`;
  return code === 'ENOENT' ? `There is no ${path}.` : `${path} cannot be read (${code}).`;
}

/** The operator's token is only sent to the service of its own machine. */
function serviceOfThisMachine(context: Context): string {
  const given = context.options.url ?? context.terminal.env['RELEAP_URL'];
  const url = given ? checkUrl(given) : undefined;
  const path = join(releapHome(context.terminal.env), 'bootstrap.json');
  const found = readBootstrap(path);
  if (typeof found === 'string') {
    if (url !== undefined && isLoopback(url)) return url;
    throw new CliError(`the service of this machine is not known. ${found}`, { exitCode: EXIT.unavailable });
  }
  const local = checkUrl(found.base_url);
  if (found.internal_url === undefined)
    throw new CliError(`${path} names no internal_url: start the service of this machine again`, {
      exitCode: EXIT.unavailable,
    });
  const internal = checkUrl(found.internal_url);
  if (url !== undefined && url !== local && url !== internal)
    throw new CliError(
      `operator commands only use the service of this machine, ${local} (${path}), not ${url}: omit --url and RELEAP_URL`,
      { exitCode: EXIT.usage },
    );
  return internal;
}
