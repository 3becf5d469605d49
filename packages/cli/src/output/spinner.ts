/**
 * A progress line on stderr. Only on a terminal; it never touches stdin, which may
 * hold the input of a command, and leaves nothing behind.
 */
import { retryOnOverload, type RetryPolicy } from '@releap/sdk';
import { type Context, printable } from '../terminal.ts';

const FRAMES = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
const FRAME_MS = 80;
/** What is over sooner needs no spinner. */
const PATIENCE_MS = 300;

export class Spinner implements Disposable {
  readonly #stream: Context['terminal']['stderr'] | undefined;
  readonly #started = performance.now();
  readonly #timer: NodeJS.Timeout | undefined;
  #text: string;
  #shown = false;

  constructor(context: Context, text: string) {
    const { stderr, env } = context.terminal;
    this.#text = text;
    if (!stderr.isTTY || context.options.json || env['TERM'] === 'dumb') return;
    this.#stream = stderr;
    this.#timer = setInterval(() => this.#draw(), FRAME_MS);
    this.#timer.unref();
  }

  set text(text: string) {
    this.#text = text;
  }

  /** Shows each status of what is waited for. */
  statusOf(what: string): (status: string) => void {
    return (status) => (this.text = `${what}: ${status}`);
  }

  stop(): void {
    clearInterval(this.#timer);
    if (this.#shown) this.#stream?.write('\r\u001b[K');
    this.#shown = false;
  }

  [Symbol.dispose](): void {
    this.stop();
  }

  #draw(): void {
    const elapsed = performance.now() - this.#started;
    if (elapsed < PATIENCE_MS) return;
    const frame = FRAMES[Math.floor(elapsed / FRAME_MS) % FRAMES.length] ?? '';
    const seconds = elapsed < 2000 ? '' : ` ${Math.floor(elapsed / 1000)} s`;
    const width = (this.#stream?.columns ?? 80) - 1;
    this.#stream?.write(`\r\u001b[K${`${frame} ${this.#text}${seconds}`.slice(0, width)}`);
    this.#shown = true;
  }
}

/** Repeats a create that finds no capacity, and says so. */
export function retryShown(spinner: Spinner): RetryPolicy {
  return retryOnOverload((reason) => {
    spinner.text = `refused for now (${printable(reason)}), trying again`;
  });
}
