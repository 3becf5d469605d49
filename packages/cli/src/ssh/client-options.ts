/**
 * Options of OpenSSH's client for sandboxes. The connection goes through `rlp ssh-proxy`, which has the API key: it is in no
 * command line and in no configuration file.
 */
import { createHash } from 'node:crypto';
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { SandboxRecord, SshHostKeys } from '@releap/contract';
import { SSH_HOST_KEYS_PATH } from '@releap/contract/ssh';
import { asFailure, gatewayUrl, quoteForShell, type Service } from '@releap/sdk';
import { credentialsPath } from '../account/credentials.ts';
import { CliError } from '../cli-error.ts';
import { DEFAULT_HOME, releapHome } from '../settings.ts';
import type { Context } from '../terminal.ts';

const RLP = fileURLToPath(new URL('../../bin/rlp', import.meta.url));
const HOST_KEYS_MS = 15_000;
/** The name under which the host keys of a region are known. */
const alias = (region: string): string => `releap-${region}`;

/** The options of one host, as pairs of keyword and value of ssh_config(5). */
export type ClientOptions = readonly (readonly [keyword: string, value: string])[];

/** @param target what `rlp ssh-proxy` gets: a name or an id of a sandbox, or `%n` */
export async function clientOptions(
  context: Context,
  service: Service,
  region: SandboxRecord['region'],
  target: string,
): Promise<ClientOptions> {
  const known = await writeKnownHosts(context, service, region);
  return [
    ['ProxyCommand', proxyCommand(context, service, target)],
    ['HostKeyAlias', alias(region)],
    ['UserKnownHostsFile', `"${known}"`],
    ['GlobalKnownHostsFile', '/dev/null'],
    ['StrictHostKeyChecking', 'yes'],
    // It would be sent to the sandbox's gateway in vain.
    ['PubkeyAuthentication', 'no'],
    // The gateway answers for the sandbox; a dead connection is noticed within a minute and a half.
    ['ServerAliveInterval', '30'],
  ];
}

/** The service is named, as another one may be in use later; the key is looked up at the time of the connection. */
function proxyCommand(context: Context, service: Service, target: string): string {
  const home = releapHome(context.terminal.env);
  const words = [
    ...(home === DEFAULT_HOME ? [] : ['env', `RELEAP_HOME=${home}`]),
    RLP,
    '--url',
    service.url,
    'ssh-proxy',
  ].map((word) => quoteForShell(word.replaceAll('%', '%%')));
  return `${words.join(' ')} ${target}`;
}

/** Writes the host keys that the service names for a region. @returns the file */
async function writeKnownHosts(context: Context, service: Service, region: string): Promise<string> {
  const lines = (await hostKeys(service, region)).map((key) => `${alias(region)} ${key}\n`).join('');
  const name = createHash('sha256').update(`${service.url} ${region}`).digest('hex').slice(0, 16);
  const file = join(dirname(credentialsPath(context.terminal.env)), 'ssh', `${name}.known_hosts`);
  if ((await readFile(file, 'utf8').catch(() => '')) === lines) return file;
  await mkdir(dirname(file), { recursive: true, mode: 0o700 });
  const partial = `${file}.${process.pid}`;
  await writeFile(partial, lines, { mode: 0o600 });
  await rename(partial, file);
  return file;
}

async function hostKeys(service: Service, region: string): Promise<readonly string[]> {
  const gateway = await gatewayUrl(service, region);
  const url = new URL(`${gateway.replace(/\/+$/, '')}${SSH_HOST_KEYS_PATH}`);
  const signal = AbortSignal.any([service.signal, AbortSignal.timeout(HOST_KEYS_MS)]);
  try {
    const answer = await fetch(url, { signal });
    const { host_keys: keys } = (await answer.json()) as Partial<SshHostKeys>;
    if (answer.ok && Array.isArray(keys) && keys.every((key) => /^[a-z0-9@.-]+ [A-Za-z0-9+/=]+$/.test(key)))
      return keys;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw asFailure(error, service.signal, url);
  }
  throw new CliError(`the gateway of region ${JSON.stringify(region)} does not serve SSH`);
}
