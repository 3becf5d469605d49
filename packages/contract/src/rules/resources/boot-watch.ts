/** Tells a slow boot of a guest from one that hangs, by what it prints on its console. The runner and `rlp doctor` use it. */

/** How long a boot may take, in milliseconds. */
export interface BootPatience {
  /** Until it prints anything. */
  first: number;
  /** Without printing anything more. */
  silence: number;
  /** In all. */
  total: number;
}

/**
 * Under KVM a guest boots within a second or two. One that prints nothing at all for `first` hangs: on some machines guests execute
 * nothing. One whose firmware has printed something executes, and is given time: on a busy host that is virtualised itself a boot
 * took more than a minute.
 */
export const KVM_BOOT: BootPatience = { first: 30_000, silence: 90_000, total: 300_000 };

const CONSOLE_MAX_CHARS = 64 * 1024;

export class BootWatch implements Disposable {
  readonly #patience: BootPatience;
  readonly #late = new AbortController();
  readonly #total: NodeJS.Timeout;
  #silence: NodeJS.Timeout;
  #console = '';

  constructor(patience: BootPatience) {
    this.#patience = patience;
    this.#silence = this.#after(patience.first, hangs(patience.first));
    this.#total = this.#after(patience.total, `it takes longer than ${patience.total / 1000} s`);
  }

  /** Aborted when the boot hangs or takes too long. The reason is an error that says so. */
  get signal(): AbortSignal {
    return this.#late.signal;
  }

  /** The end of what the guest has printed. */
  get console(): string {
    return this.#console;
  }

  /** The guest has printed this. */
  add(text: string): void {
    this.#console = (this.#console + text).slice(-CONSOLE_MAX_CHARS);
    if (text === '' || this.signal.aborted) return;
    clearTimeout(this.#silence);
    this.#silence = this.#after(this.#patience.silence, hangs(this.#patience.silence));
  }

  /** Ends the watch: the guest has booted, or is not waited for any more. */
  [Symbol.dispose](): void {
    clearTimeout(this.#silence);
    clearTimeout(this.#total);
  }

  #after(ms: number, problem: string): NodeJS.Timeout {
    return setTimeout(() => this.#late.abort(new Error(problem)), ms);
  }
}

function hangs(ms: number): string {
  return `it hangs (nothing from it within ${ms / 1000} s)`;
}
