import { pino, type Logger } from 'pino';
import sonicBoom from 'sonic-boom';
import { loggerOptions } from './logger-options.ts';
import { humanLine } from './terminal.ts';

/** Lines that nobody takes are dropped beyond this, in characters. */
const WAITING_MAX = 8 * 1024 * 1024;

/**
 * The log of one role's process: JSON lines on standard output for a supervisor or a log collector, lines for
 * people on a terminal.
 * @returns `flush` writes what waits before the process ends; it returns also when there is no reader any more
 */
export function roleLogger(
  role: string,
  level: string,
  supervised: boolean,
): { log: Logger; flush: () => void } {
  const options = loggerOptions(level);
  if (!supervised && process.stdout.isTTY) {
    const color = process.stdout.hasColors();
    const write = (text: string): void => {
      process.stdout.write(`${humanLine(text, role, color) ?? text}\n`);
    };
    return { log: pino(options, { write }), flush: () => undefined };
  }
  // Not pino.destination(): before version 5, sonic-boom tries for ever to flush to a reader that is gone.
  const stdout = new sonicBoom.SonicBoom({ fd: 1, sync: false, maxLength: WAITING_MAX });
  // The reader is gone: that is no reason to end, and there is nowhere to say it.
  stdout.on('error', () => undefined);
  const flush = (): void => {
    try {
      stdout.flushSync();
    } catch {
      // Nobody reads.
    }
  };
  return { log: pino(options, stdout), flush };
}
