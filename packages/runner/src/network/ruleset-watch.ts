import type { ChildProcess } from 'node:child_process';
import { killGroup, startProcess } from '../process/index.ts';

/**
 * Calls `look` as soon as a table of the host's firewall is removed, as `nft monitor` tells, and from time to time: events may be lost,
 * and the tool may have ended. One call runs at a time.
 */
export class RulesetWatch {
  readonly #look: () => Promise<void>;
  readonly #timer: NodeJS.Timeout;
  #monitor: ChildProcess | undefined;
  #closed = false;
  #looking = false;
  #again = false;

  /** @param everyMs between two looks without an event. @param look never rejects */
  constructor(everyMs: number, look: () => Promise<void>) {
    this.#look = look;
    this.#timer = setInterval(() => {
      this.#follow();
      void this.#run();
    }, everyMs).unref();
    this.#follow();
  }

  close(): void {
    this.#closed = true;
    clearInterval(this.#timer);
    if (this.#monitor !== undefined) killGroup(this.#monitor);
  }

  /** Whatever it prints is a reason to look: what it says is not read. */
  #follow(): void {
    if (this.#monitor !== undefined || this.#closed) return;
    const child = startProcess('nft', ['monitor', 'destroy', 'tables'], {
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    this.#monitor = child;
    child.stdout?.on('data', () => void this.#run());
    child.once('error', () => (this.#monitor = undefined));
    child.once('exit', () => (this.#monitor = undefined));
    child.unref();
    (child.stdout as (NodeJS.ReadableStream & { unref?: () => void }) | null)?.unref?.();
  }

  async #run(): Promise<void> {
    this.#again = true;
    if (this.#looking) return;
    this.#looking = true;
    while (this.#again && !this.#closed) {
      this.#again = false;
      await this.#look();
    }
    this.#looking = false;
  }
}
