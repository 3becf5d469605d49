import { loggerOptions } from '@releap/server';
import { pino, type Logger } from 'pino';

/** Logs nothing, unless RELEAP_TEST_LOG names a level. */
export const quiet: Logger = pino(loggerOptions(process.env['RELEAP_TEST_LOG'] ?? 'silent'));
