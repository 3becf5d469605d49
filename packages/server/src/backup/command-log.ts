import { pino, type Logger } from 'pino';
import type { Config } from '../config/config.ts';
import { loggerOptions } from '../log/logger-options.ts';

/** To standard error; what these commands do is in their output. */
export function commandLog({ log: { level } }: Pick<Config, 'log'>): Logger {
  return pino(loggerOptions(level === 'info' ? 'warn' : level), pino.destination({ fd: 2, sync: true }));
}
