import path from 'node:path';
import { pino, type Logger } from 'pino';
import type { Config } from '../config/config.ts';
import { loggerOptions } from './logger-options.ts';
import { humanLine } from './terminal.ts';
import { RotatingFile } from './rotating-file.ts';

const TERMINAL_LEVEL = 30;
/** Lines that are not JSON are warnings of Node or the last output of a process. */
const PLAIN_LEVEL = 40;

/**
 * Collects the logs of all processes of the all-in-one service: every line as JSON in `$RELEAP_HOME/log/<role>.log`, and
 * those from level info formatted on the terminal.
 */
export class LogAggregator {
  readonly #folder: string;
  readonly #config: Config['log'];
  readonly #terminal: NodeJS.WriteStream;
  readonly #color: boolean;
  readonly #files = new Map<string, RotatingFile>();

  constructor(home: string, config: Config['log'], terminal: NodeJS.WriteStream = process.stdout) {
    this.#folder = path.join(home, 'log');
    this.#config = config;
    this.#terminal = terminal;
    this.#color = terminal.isTTY && terminal.hasColors();
    // A closed terminal is not fatal.
    terminal.on('error', () => undefined);
  }

  /** One line of a process: JSON from pino, or other output. */
  line(role: string, text: string): void {
    if (text.trim() === '') return;
    const shown = humanLine(text, role, this.#color);
    const json =
      shown === undefined
        ? JSON.stringify({ level: PLAIN_LEVEL, time: Date.now(), msg: text.slice(0, 16_384) })
        : text;
    this.#file(role).write(json);
    const level = shown === undefined ? PLAIN_LEVEL : Number(/"level":(\d+)/.exec(text)?.[1]);
    if (level < TERMINAL_LEVEL) return;
    this.say(shown ?? humanLine(json, role, this.#color) ?? '');
  }

  get color(): boolean {
    return this.#color;
  }

  /** Text for the terminal; not logged. */
  say(text: string): void {
    this.#terminal.write(`${text}\n`);
  }

  /** A logger for code that runs in this process. */
  logger(role: string): Logger {
    const write = (text: string): void => this.line(role, text.trimEnd());
    return pino(loggerOptions(this.#config.level), { write });
  }

  async close(): Promise<void> {
    await Promise.all([...this.#files.values()].map((file) => file.close()));
  }

  #file(role: string): RotatingFile {
    let file = this.#files.get(role);
    if (file === undefined) {
      file = new RotatingFile(path.join(this.#folder, `${role}.log`), this.#config.fileBytes);
      this.#files.set(role, file);
    }
    return file;
  }
}
