import { type IncomingMessage, request as httpRequest } from 'node:http';
import { readlink } from 'node:fs/promises';
import { addressPath, SandboxAddress } from '@releap/contract';
import { Check } from 'typebox/value';
import type { GrantLease } from '../control/grants.ts';

const ANSWER_MS = 5_000;
const LINE_MAX = 1_024;

/** The address of a sandbox, until it loses it. */
export interface AddressHold {
  address: string;
  /** Aborted when the sandbox loses the address, or the connection to the runner is lost. */
  lost: AbortSignal;
  release(): void;
}

interface Shared {
  users: number;
  opened: Promise<{ address: string; lost: AbortSignal; close: () => void } | undefined>;
}

/** Addresses of sandboxes on this machine, from their runner: one open request for each sandbox that routes lead to. */
export class AddressHolds {
  readonly #mayConnect: (address: SandboxAddress) => boolean;
  readonly #shared = new Map<string, Shared>();
  readonly #network = readlink('/proc/self/ns/net').catch(() => '');

  /** @param mayConnect whether the firewall lets those connect that use the address */
  constructor(mayConnect: (address: SandboxAddress) => boolean) {
    this.#mayConnect = mayConnect;
  }

  /** @returns undefined when the sandbox runs on another machine, or the user may not connect */
  async get(lease: Pick<GrantLease, 'vmId' | 'host' | 'dataToken'>): Promise<AddressHold | undefined> {
    if (!lease.host.isLocal) return undefined;
    const key = `${lease.host.key} ${lease.vmId}`;
    const shared = this.#shared.get(key) ?? { users: 0, opened: this.#open(lease) };
    this.#shared.set(key, shared);
    shared.users++;
    const opened = await shared.opened.catch(() => undefined);
    const release = (): void => {
      if (--shared.users > 0) return;
      if (this.#shared.get(key) === shared) this.#shared.delete(key);
      opened?.close();
    };
    if (opened === undefined || opened.lost.aborted) {
      // The next one asks again.
      if (this.#shared.get(key) === shared) this.#shared.delete(key);
      release();
      return undefined;
    }
    return { address: opened.address, lost: opened.lost, release };
  }

  async #open({ vmId, host, dataToken }: Pick<GrantLease, 'vmId' | 'host' | 'dataToken'>) {
    const lost = new AbortController();
    const socket = await host.dial();
    const request = httpRequest({
      createConnection: () => socket,
      path: addressPath(vmId),
      headers: { host: 'runner', authorization: `Bearer ${dataToken}` },
    });
    const close = (): void => {
      lost.abort();
      request.destroy();
    };
    const timer = setTimeout(close, ANSWER_MS);
    try {
      const line = await new Promise<string>((resolve, reject) => {
        request.on('error', reject);
        request.on('close', () => reject(new Error('the runner closed the connection')));
        request.on('response', (answer: IncomingMessage) => {
          let text = '';
          answer.setEncoding('utf8');
          answer.on('error', close);
          answer.on('close', close);
          answer.on('data', (chunk: string) => {
            text = `${text}${chunk}`.slice(0, LINE_MAX);
            if (text.includes('\n')) resolve(text);
          });
        });
        request.end();
      });
      const said: unknown = JSON.parse(line);
      if (Check(SandboxAddress, said) && this.#mayConnect(said) && said.network === (await this.#network))
        return { address: said.address, lost: lost.signal, close };
      close();
      return undefined;
    } catch (error) {
      close();
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }
}
