import { readFile } from 'node:fs/promises';
import { formatNameServer, type NameServer, parseNameServer, parseResolvConf } from '@releap/contract/netd';

const REREAD_MS = 10_000;

/** The servers that netd asks: those configured, else the host's own, read again now and then because DHCP changes them. */
export class NameServers {
  readonly #configured: readonly NameServer[] | undefined;
  /** The host's own. */
  #own: readonly NameServer[];
  #timer: NodeJS.Timeout | undefined;

  private constructor(configured: readonly NameServer[] | undefined, own: readonly NameServer[]) {
    this.#configured = configured;
    this.#own = own;
  }

  /** @throws when one that is configured is none */
  static async open(configured: readonly string[] | undefined): Promise<NameServers> {
    return new NameServers(configured?.map(parseNameServer), await readOwn());
  }

  get current(): readonly NameServer[] {
    return this.#configured ?? this.#own;
  }

  /** Calls `onChange` when the host's own have changed, also where others are configured: the store proxy resolves names by them. */
  follow(onChange: () => void): void {
    this.#timer = setInterval(() => {
      void readOwn().then((servers) => {
        if (this.#timer === undefined || isSame(servers, this.#own)) return;
        this.#own = servers;
        onChange();
      });
    }, REREAD_MS).unref();
  }

  close(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }
}

async function readOwn(): Promise<NameServer[]> {
  return await readFile('/etc/resolv.conf', 'utf8').then(parseResolvConf, () => []);
}

function isSame(one: readonly NameServer[], other: readonly NameServer[]): boolean {
  return one.map(formatNameServer).join() === other.map(formatNameServer).join();
}
