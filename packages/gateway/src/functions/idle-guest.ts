import { setTimeout as sleep } from 'node:timers/promises';
import { badGateway, freezePath, newUuid, thawPath } from '@releap/contract';
import type { InstanceLease } from '../control/instance-leases.ts';
import type { EndpointPools } from '../http/endpoints.ts';

const RETRY_MS = { freeze: 1_000, thaw: 100 };
const ANSWER_MAX_BYTES = 64 * 1024;

export interface IdleGuestOptions {
  lease: Pick<InstanceLease, 'vmId' | 'host' | 'dataToken'>;
  runners: EndpointPools;
  /** How long its runner may take until it has thawed the guest, a restart of the runner included. */
  thawMs: number;
}

/** Stops and resumes the virtual processors of a leased instance, by requests to its runner (see `IdleTurn`). */
export class IdleGuest {
  readonly #options: IdleGuestOptions;
  #turn = newUuid();
  #freezing = new AbortController();

  constructor(options: IdleGuestOptions) {
    this.#options = options;
  }

  /** Repeats the request until the runner has answered it, or `thaw` or `close` is called. */
  freeze(): void {
    this.close();
    this.#freezing = new AbortController();
    void this.#freeze(this.#turn, this.#freezing.signal).catch(() => undefined);
  }

  /**
   * Resolves when the guest runs, also when another gateway had frozen it. A freeze that is on its way has no effect from now on.
   * @throws ApiError 502 after `thawMs`; the signal's reason
   */
  async thaw(signal: AbortSignal): Promise<void> {
    this.close();
    this.#turn = newUuid();
    const deadline = performance.now() + this.#options.thawMs;
    for (;;) {
      signal.throwIfAborted();
      const error = await this.#ask(thawPath, this.#turn, signal);
      if (error === undefined) return;
      if (performance.now() >= deadline)
        throw badGateway(`the instance could not be thawed: ${error.message}`);
      await sleep(RETRY_MS.thaw, undefined, { signal });
    }
  }

  close(): void {
    this.#freezing.abort();
  }

  async #freeze(turn: string, signal: AbortSignal): Promise<void> {
    for (;;) {
      const error = await this.#ask(freezePath, turn, signal);
      // 409: it was thawed since, or does not run any more.
      if (error === undefined || error.status === 409) return;
      await sleep(RETRY_MS.freeze, undefined, { signal });
    }
  }

  /** @returns why it was not done */
  async #ask(
    path: (vmId: string) => string,
    turn: string,
    signal: AbortSignal,
  ): Promise<{ status?: number; message: string } | undefined> {
    const { lease, runners } = this.#options;
    try {
      const { statusCode: status, body } = await runners.get(lease.host).request({
        method: 'POST',
        path: path(lease.vmId),
        headers: {
          host: 'runner',
          authorization: `Bearer ${lease.dataToken}`,
          'content-type': 'application/json',
        },
        body: JSON.stringify({ turn }),
        signal,
      });
      if (status === 200) {
        await body.dump({ limit: ANSWER_MAX_BYTES, signal });
        return undefined;
      }
      const said = await body.text();
      // A runner of an earlier release never stops a guest.
      if (status === 404 && said.includes('no such path')) return undefined;
      return { status, message: `its host answered ${status}` };
    } catch {
      signal.throwIfAborted();
      return { message: 'its host cannot be reached' };
    }
  }
}
