import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';

/** A /30 of the range that RFC 2544 keeps for tests. */
const NETWORK = '198.18.77';

const ip = (...args: string[]): string => execFileSync('ip', args, { encoding: 'utf8' });
const nft = (text: string): string => execFileSync('nft', [text], { encoding: 'utf8' });

/**
 * A network namespace with a way to the outside through this machine. A machine's programs share its packet filter, and one nft
 * cannot always read what another version has written: 1.0.6 crashes on tables of 1.1. So roots of another distribution do not
 * share ours.
 */
export class Uplink implements Disposable {
  readonly namespace: string;
  readonly #table: string;

  private constructor(name: string) {
    this.namespace = name;
    this.#table = `ip ${name.replaceAll('-', '_')}`;
  }

  /** @param name of the namespace, also for the start of the name of its link: at most 12 characters */
  static make(name: string): Uplink {
    const uplink = new Uplink(name);
    try {
      ip('netns', 'add', name);
      ip('link', 'add', `${name}-up`, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', name);
      ip('address', 'add', `${NETWORK}.1/30`, 'dev', `${name}-up`);
      ip('link', 'set', `${name}-up`, 'up');
      ip('-n', name, 'address', 'add', `${NETWORK}.2/30`, 'dev', 'eth0');
      for (const link of ['lo', 'eth0']) ip('-n', name, 'link', 'set', link, 'up');
      ip('-n', name, 'route', 'add', 'default', 'via', `${NETWORK}.1`);
      // As a service on this machine sets it, too; it stays set.
      writeFileSync('/proc/sys/net/ipv4/ip_forward', '1');
      nft(`table ${uplink.#table} { chain source_nat { type nat hook postrouting priority srcnat;
        ip saddr ${NETWORK}.0/30 oifname != "${name}-up" masquerade; }; }`);
      return uplink;
    } catch (error) {
      uplink[Symbol.dispose]();
      throw error;
    }
  }

  /** Names of the links in it. */
  links(): string[] {
    const links = JSON.parse(ip('-n', this.namespace, '-j', 'link')) as { ifname: string }[];
    return links.map(({ ifname }) => ifname);
  }

  [Symbol.dispose](): void {
    for (const remove of [
      () => ip('netns', 'delete', this.namespace),
      () => nft(`delete table ${this.#table}`),
    ]) {
      try {
        remove();
      } catch {
        // It was not made.
      }
    }
  }
}
