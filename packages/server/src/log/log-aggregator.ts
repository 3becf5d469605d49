import path from 'node:path';
import { pino, type Logger } from 'pino';
import type { Config } from '../config/config.ts';
import { loggerOptions } from './logger-options.ts';
import { humanLine } from './terminal.ts';
import { RotatingFile } from './rotating-file.ts';

const TERMINAL_LEVEL = 30;
/** What is not JSON is a warning of Node or the last words of a process. */
const PLAIN_LEVEL = 40;

/**
 * Where all that the parts of the all-in-one service say comes together: every line in
 * `$RELEAP_HOME/log/<part>.log` as JSON, and those from level info on the terminal, for people.
 */
export class LogBook {
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
    // A terminal that was closed is no reason to stop.
    terminal.on('error', () => undefined);
  }

  /** One line of a part: JSON as pino writes it, or whatever else it printed. */
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

  /** Text for whoever sits at the terminal; not logged. */
  say(text: string): void {
    this.#terminal.write(`${text}\n`);
  }

  /** A logger for a part that runs in this process. */
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
