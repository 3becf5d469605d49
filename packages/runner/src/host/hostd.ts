/** The runner's privileged helper: host/cmd/hostd, which does what Node.js cannot ask the kernel for. */
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { fileURLToPath } from 'node:url';

/** The static binary; set-up builds it. */
export const HOSTD = fileURLToPath(new URL('../../../../build/host/hostd', import.meta.url));

const OUTPUT_TAIL_CHARS = 1024;
const END_DEADLINE_MS = 5_000;

/** A hostd command that takes and answers lines, and ends with its standard input. */
export class HostdProcess implements AsyncDisposable {
  readonly #child: ChildProcess;
  readonly #ended: Promise<void>;
  #lines: string[] = [];
  #rest = '';
  #stderr = '';
  #hasEnded = false;
  #wake = Promise.withResolvers<void>();

  constructor(command: 'precopy' | 'memfd', args: string[]) {
    this.#child = spawn(HOSTD, [command, ...args], { stdio: ['pipe', 'pipe', 'pipe'], env: {} });
    const end = (error?: Error): void => {
      this.#stderr ||= error?.message ?? '';
      this.#hasEnded = true;
      this.#wake.resolve();
    };
    this.#ended = new Promise((resolve) => {
      this.#child.once('error', (error) => {
        end(error);
        resolve();
      });
      this.#child.once('close', () => {
        end();
        resolve();
      });
    });
    // With no file descriptors left there are no pipes either.
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

  /** The next line of its output. @throws when it ends first, with its error, or prints none within the deadline */
  async line(deadlineMs: number): Promise<string> {
    const late = setTimeout(() => this.#child.kill('SIGKILL'), deadlineMs);
    try {
      for (;;) {
        const line = this.#lines.shift();
        if (line !== undefined) return line;
        if (this.#hasEnded) throw new Error(this.#stderr.trim() || 'hostd ended without an error message');
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
