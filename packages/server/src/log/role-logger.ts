import { pino, type Logger, type LoggerOptions } from 'pino';
import sonicBoom from 'sonic-boom';
import { loggerOptions } from './logger-options.ts';
import { humanLine } from './terminal.ts';

/** Buffered lines beyond this are dropped while the reader is slow, in characters. */
const WAITING_MAX = 8 * 1024 * 1024;

/**
 * The log of one role's process: JSON lines on standard output for a supervisor or a log collector, formatted lines on a
 * terminal.
 * @param mixin fields of every line
 * @returns `flush` writes the buffer before the process ends; it also returns when the reader has closed the pipe
 */
export function roleLogger(
  role: string,
  level: string,
  supervised: boolean,
  mixin?: LoggerOptions['mixin'],
): { log: Logger; flush: () => void } {
  const options = { ...loggerOptions(level), ...(mixin === undefined ? {} : { mixin }) };
  if (!supervised && process.stdout.isTTY) {
    const color = process.stdout.hasColors();
    const write = (text: string): void => {
      process.stdout.write(`${humanLine(text, role, color) ?? text}\n`);
    };
    return { log: pino(options, { write }), flush: () => undefined };
  }
  // Not pino.destination(): before version 5, flushing sonic-boom never ends if the reader has closed the pipe.
  const stdout = new sonicBoom.SonicBoom({ fd: 1, sync: false, maxLength: WAITING_MAX });
  // The reader has closed the pipe: not fatal, and it cannot be logged.
  stdout.on('error', () => undefined);
  const flush = (): void => {
    try {
      stdout.flushSync();
    } catch {
      // There is no reader.
    }
  };
  return { log: pino(options, stdout), flush };
}
