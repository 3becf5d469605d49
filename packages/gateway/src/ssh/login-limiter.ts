import { EventCounter, subjectOf, SUBJECTS_MAX } from '../http/event-counter.ts';

export { subjectOf };

export interface LoginLimits {
  failuresPerAddress: number;
  failuresPerSandbox: number;
}

/**
 * Limits failed logins by address and by sandbox. An address that has logged in to a sandbox before is exempt from the
 * sandbox's limit: strangers cannot lock its user out.
 */
export class LoginLimiter {
  readonly #addresses: EventCounter;
  readonly #sandboxes: EventCounter;
  readonly #known = new Set<string>();

  constructor({ failuresPerAddress, failuresPerSandbox }: LoginLimits) {
    this.#addresses = new EventCounter(failuresPerAddress);
    this.#sandboxes = new EventCounter(failuresPerSandbox);
  }

  /** Whether connections of this address are refused for now. */
  isAddressBlocked(address: string): boolean {
    return this.#addresses.isExceeded(subjectOf(address));
  }

  isBlocked(address: string, sandbox: string): boolean {
    if (this.isAddressBlocked(address)) return true;
    return this.#sandboxes.isExceeded(sandbox) && !this.#known.has(pair(address, sandbox));
  }

  failed(address: string, sandbox: string): void {
    this.#addresses.add(subjectOf(address));
    this.#sandboxes.add(sandbox);
  }

  succeeded(address: string, sandbox: string): void {
    const key = pair(address, sandbox);
    this.#known.delete(key);
    this.#known.add(key);
    for (const oldest of this.#known) {
      if (this.#known.size <= SUBJECTS_MAX) break;
      this.#known.delete(oldest);
    }
  }
}

const pair = (address: string, sandbox: string): string => `${subjectOf(address)} ${sandbox}`;
