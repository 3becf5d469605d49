/** `releap join`: makes this machine a host of a deployment, with one token of its operator. */
import { existsSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { parseJoinToken } from '@releap/contract/join-token';
import { joinDeployment } from '@releap/runner/join';
import { type Config, ConfigError, loadConfig } from '../config/config.ts';
import { readSettings, type Settings, settingsFile, writeSettings } from '../config/settings-file.ts';
import { runnerCommand } from '../paths.ts';
import { assertRoot } from '../roles/root.ts';
import { claimPort } from '../supervisor/ports.ts';
import { assertPrograms } from './programs.ts';

export const JOIN_USAGE = `usage: releap join TOKEN [--data-host ADDRESS | --data-url URL] [--name NAME] [--region ID]

  TOKEN               what rlp host join-token has printed on the machine of the service
  --data-host ADDRESS address of this machine at which gateways and control servers reach it, or none
  --data-url URL      https://ADDRESS:PORT where they do, if not where it listens; without --data-host it listens at
                      all addresses
  --region ID         its region (default: local)
  --name NAME         what rlp host ls calls it (default: the name of the machine)

RELEAP_HOME says which home it is. Run again, it changes these settings and joins nothing.`;

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Prints what it has done, and what comes next. Nothing is written unless the control plane accepts this machine.
 * @returns the exit code
 * @throws with the reason, of one line
 */
export async function joinCommand(
  args: readonly string[],
  env: Environment,
  print: (text: string) => void = (text) => void process.stdout.write(text),
): Promise<number> {
  const asked = parse(args);
  if (asked === undefined) {
    process.stderr.write(`${JOIN_USAGE}\n`);
    return 2;
  }
  assertRoot();
  const token = parseJoinToken(asked.token);
  const { home } = loadConfig({ RELEAP_HOME: env['RELEAP_HOME'] });
  if (existsSync(path.join(home, 'bootstrap.json')))
    throw new Error(
      `${home} is the home of a whole service, and no further host: set RELEAP_HOME to another folder`,
    );
  const former = readSettings(home);
  const settings: Settings = {
    ...former,
    RELEAP_CONTROL_URL: token.controlUrl,
    RELEAP_CONTROL_FINGERPRINT: token.fingerprint,
    ...asked.settings,
  };
  for (const [name, value] of Object.entries(asked.settings))
    if (value === '') delete settings[name as keyof Settings];
  const config = loadConfig({ ...env, ...settings, RELEAP_HOME: home });
  assertPrograms();
  await assertAddress(config, existsSync(settingsFile(home)));
  const { data } = config;
  const { runnerId, isNew, unreached } = await joinDeployment({ home, ...token, data });
  if (unreached !== undefined)
    throw new Error(
      `${isNew ? 'joined' : 'already joined'} as host ${runnerId}, but the control plane cannot connect to ${unreached}: let it through and run ` +
        'this again, or run it with --data-host none',
    );
  await writeSettings(home, settings);
  print(report(config, runnerId, isNew, token.controlUrl));
  return 0;
}

interface Asked {
  token: string;
  /** An empty value removes a setting. */
  settings: Settings;
}

function parse(args: readonly string[]): Asked | undefined {
  const text = { type: 'string' } as const;
  try {
    const { values, positionals } = parseArgs({
      args: [...args],
      options: { 'data-host': text, 'data-url': text, name: text, region: text },
      allowPositionals: true,
    });
    const [token, ...more] = positionals;
    if (token === undefined || more.length > 0) return undefined;
    const { 'data-host': host, 'data-url': url, name, region } = values;
    return {
      token,
      settings: {
        ...(host === 'none' && { RELEAP_DATA_HOST: '', RELEAP_DATA_URL: '' }),
        ...(host !== undefined && host !== 'none' && { RELEAP_DATA_HOST: host, RELEAP_DATA_URL: url ?? '' }),
        ...(host === undefined && url !== undefined && { RELEAP_DATA_HOST: '0.0.0.0', RELEAP_DATA_URL: url }),
        ...(name !== undefined && { RELEAP_HOST_NAME: name }),
        ...(region !== undefined && { RELEAP_REGION: region }),
      },
    };
  } catch {
    return undefined;
  }
}

/** @param mayRun its runner may have the port already @throws ConfigError */
async function assertAddress({ data }: Config, mayRun: boolean): Promise<void> {
  if (data === undefined) return;
  try {
    await claimPort(data.host, data.port, 'RELEAP_DATA_PORT', 'RELEAP_DATA_HOST');
  } catch (error) {
    const { message, cause } = error as Error;
    if (mayRun && (cause as NodeJS.ErrnoException | undefined)?.code === 'EADDRINUSE') return;
    throw new ConfigError([message]);
  }
}

function report({ home, data }: Config, id: string, isNew: boolean, url: string): string {
  const reached =
    data === undefined
      ? 'it accepts no connections of other machines: gateways reach its sandboxes over those that it opens'
      : `gateways and control servers connect to ${data.url ?? `${data.host} port ${data.port}`}: let them through to it`;
  return [
    isNew
      ? `joined ${url} as host ${id}`
      : `already joined ${url} as host ${id}; the join token was not used`,
    `settings: ${settingsFile(home)}`,
    reached,
    `next: start the runner (${runnerCommand()}), and rlp host ls on the machine of the service shows this host`,
    '',
  ].join('\n');
}
