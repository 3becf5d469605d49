/**
 * Settings of the runner of a home that `releap join` has written: lines `NAME=VALUE` of the variables of docs/configuration.md, which
 * hold where the environment does not say otherwise.
 */
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { writePrivateFile } from '@releap/certificates/private-file';
import { ConfigError, loadConfig } from './config.ts';
import { type VariableName, VARIABLES } from './variables.ts';

export type Settings = Partial<Record<VariableName, string>>;
type Environment = Readonly<Record<string, string | undefined>>;

export const settingsFile = (home: string): string => path.join(home, 'runner.env');

/** Empty when there is no file. @throws ConfigError */
export function readSettings(home: string): Settings {
  const file = settingsFile(home);
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return {};
    throw error;
  }
  const settings: Settings = {};
  for (const [index, line] of text.split('\n').entries()) {
    if (/^\s*(#|$)/.test(line)) continue;
    const [, name = '', value = ''] = /^([A-Z][A-Z0-9_]*)=(.*)$/.exec(line) ?? [];
    if (!isName(name) || name === 'RELEAP_HOME')
      throw new ConfigError([
        `${file}, line ${index + 1}: must be NAME=VALUE, with a variable of docs/configuration.md`,
      ]);
    settings[name] = value.trim();
  }
  return settings;
}

/** In one step, readable by its owner alone. */
export async function writeSettings(home: string, settings: Settings): Promise<void> {
  const lines = Object.entries(settings).map(([name, value]) => `${name}=${value}\n`);
  await writePrivateFile(
    settingsFile(home),
    `# Written by releap join. The environment wins over it.\n${lines.join('')}`,
  );
}

/** The environment with the settings of the home that it names. @throws ConfigError */
export function withSettings(env: Environment): Environment {
  const { home } = loadConfig({ RELEAP_HOME: env['RELEAP_HOME'] });
  const given = Object.entries(env).filter(([, value]) => value !== undefined && value !== '');
  return { ...readSettings(home), ...Object.fromEntries(given) };
}

const isName = (name: string): name is VariableName => Object.hasOwn(VARIABLES, name);
