import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';

const OUTPUT_TAIL_CHARS = 1024;
const END_DEADLINE_MS = 5_000;

/** One of our Perl programs that is talked to line by line, and ends with its standard input. */
export class PerlHelper implements AsyncDisposable {
  readonly #child: ChildProcess;
  readonly #ended: Promise<void>;
  #lines: string[] = [];
  #rest = '';
  #stderr = '';
  #over = false;
  #wake = Promise.withResolvers<void>();

  constructor(script: string, args: string[]) {
    this.#child = spawn('perl', [script, ...args], {
      stdio: ['pipe', 'pipe', 'pipe'],
      env: { LC_ALL: 'C' },
    });
    const over = (error?: Error): void => {
      this.#stderr ||= error?.message ?? '';
      this.#over = true;
      this.#wake.resolve();
    };
    this.#ended = new Promise((resolve) => {
      this.#child.once('error', (error) => {
        over(error);
        resolve();
      });
      this.#child.once('close', () => {
        over();
        resolve();
      });
    });
    // Where no descriptors are left there are no pipes either.
    this.#child.stdin?.on('error', () => undefined);
    this.#child.stderr?.on('data', (chunk: Buffer) => {
      this.#stderr = (this.#stderr + chunk.toString('utf8')).slice(-OUTPUT_TAIL_CHARS);
    });
    this.#child.stdout?.on('data', (chunk: Buffer) => {
      const parts = (this.#rest + chunk.toString('latin1')).split('\n');
      this.#rest = (parts.pop() ?? '').slice(-OUTPUT_TAIL_CHARS);
      this.#lines.push(...parts);
      this.#wake.resolve();
    });
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  send(line: string): void {
    this.#child.stdin?.write(`${line}\n`);
  }

  /** The next line that it says. @throws when it ends first, with what it said of that, or does not within the deadline */
  async line(deadlineMs: number): Promise<string> {
    const late = setTimeout(() => this.#child.kill('SIGKILL'), deadlineMs);
    try {
      for (;;) {
        const line = this.#lines.shift();
        if (line !== undefined) return line;
        if (this.#over) throw new Error(this.#stderr.trim() || 'perl ended without a word');
        this.#wake = Promise.withResolvers();
        await this.#wake.promise;
      }
    } finally {
      clearTimeout(late);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#child.stdin?.end();
    const late = setTimeout(() => this.#child.kill('SIGKILL'), END_DEADLINE_MS);
    await this.#ended;
    clearTimeout(late);
  }
}
