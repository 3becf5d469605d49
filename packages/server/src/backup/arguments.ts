import { parseArgs, type ParseArgsConfig } from 'node:util';
import { ConfigError } from '../config/config.ts';

/** As `parseArgs`, with an error for people. @throws ConfigError */
export function parsed<T extends ParseArgsConfig>(config: T): ReturnType<typeof parseArgs<T>> {
  try {
    return parseArgs(config);
  } catch (error) {
    throw new ConfigError([(error as Error).message]);
  }
}
