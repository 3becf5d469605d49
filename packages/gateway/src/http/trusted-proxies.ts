/** Proxies in front of the gateway: what they say of their clients is believed, and their connections are those of many clients. */
import { BlockList, isIP, isIPv6 } from 'node:net';

/** Programs of this machine, such as the control plane. */
export const THIS_MACHINE = ['127.0.0.0/8', '::1'] as const;

const KNOWN_MAX = 10_000;

export class TrustedProxies {
  /** Addresses and CIDR blocks, those of this machine included. */
  readonly networks: readonly string[];
  readonly #list = new BlockList();
  /** Peers that were looked up: a check parses the address. */
  readonly #known = new Map<string, boolean>();

  /** @param networks besides this machine */
  constructor(networks: readonly string[] = []) {
    this.networks = [...THIS_MACHINE, ...networks];
    for (const network of this.networks) {
      const [address = '', bits] = network.split('/');
      const family = isIPv6(address) ? 'ipv6' : 'ipv4';
      if (bits === undefined) this.#list.addAddress(address, family);
      else this.#list.addSubnet(address, Number(bits), family);
    }
  }

  /** The client of a peer: what it is itself, or what it says if it is a proxy. Undefined when it does not say it, or names another proxy. */
  clientOf(address: string, forwarded: string | string[] | undefined): string | undefined {
    if (!this.has(address)) return address;
    const said =
      String(forwarded ?? '')
        .split(',')
        .at(-1)
        ?.trim() ?? '';
    return isIP(said) === 0 || this.has(said) ? undefined : said;
  }

  /** @param address of a peer; an IPv4 address also as a socket for both families shows it */
  has(address: string): boolean {
    const known = this.#known.get(address);
    if (known !== undefined) return known;
    const has = this.#list.check(address, isIPv6(address) ? 'ipv6' : 'ipv4');
    if (this.#known.size >= KNOWN_MAX) this.#known.clear();
    this.#known.set(address, has);
    return has;
  }
}
