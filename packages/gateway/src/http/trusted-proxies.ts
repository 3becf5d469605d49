/** Proxies in front of the gateway: what they say of their clients is believed, and their connections are those of many clients. */
import { BlockList, isIPv6 } from 'node:net';

/** Programs of this machine, such as the control plane. */
export const THIS_MACHINE = ['127.0.0.0/8', '::1'] as const;

export class TrustedProxies {
  /** Addresses and CIDR blocks, those of this machine included. */
  readonly networks: readonly string[];
  readonly #list = new BlockList();

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

  /** @param address of a peer; an IPv4 address also as a socket for both families shows it */
  has(address: string): boolean {
    return this.#list.check(address, isIPv6(address) ? 'ipv6' : 'ipv4');
  }
}
