import { execFileSync } from 'node:child_process';

/** A part of the range that RFC 2544 keeps for tests. */
const NETWORK = '198.18.78';

const ip = (...args: string[]): string => execFileSync('ip', args, { encoding: 'utf8' });

/**
 * A network namespace with a link to another one, which routes between it and that of this process: as two machines in two networks. To
 * be made by a process that has a network namespace of its own.
 */
export class RoutedNamespaces implements Disposable {
  /** Of this process, as the other one reaches it. */
  readonly address = `${NETWORK}.2`;
  readonly far: { namespace: string; address: string };
  readonly #router: string;

  private constructor(name: string) {
    this.far = { namespace: `${name}-far`, address: `${NETWORK}.6` };
    this.#router = `${name}-router`;
  }

  /** @param name start of the names of the namespaces */
  static make(name: string): RoutedNamespaces {
    const made = new RoutedNamespaces(name);
    const router = made.#router;
    try {
      for (const namespace of [router, made.far.namespace]) ip('netns', 'add', namespace);
      const places = [
        { namespace: String(process.pid), ip, address: made.address },
        {
          namespace: made.far.namespace,
          ip: (...args: string[]) => ip('-n', made.far.namespace, ...args),
          address: made.far.address,
        },
      ];
      ip('-n', router, 'link', 'set', 'lo', 'up');
      for (const [index, place] of places.entries()) {
        const [link, gateway] = [`to${index}`, `${NETWORK}.${4 * index + 1}`];
        const peer = ['peer', 'name', 'eth0', 'netns', place.namespace];
        ip('-n', router, 'link', 'add', link, 'type', 'veth', ...peer);
        ip('-n', router, 'address', 'add', `${gateway}/30`, 'dev', link);
        ip('-n', router, 'link', 'set', link, 'up');
        place.ip('address', 'add', `${place.address}/30`, 'dev', 'eth0');
        for (const one of ['lo', 'eth0']) place.ip('link', 'set', one, 'up');
        place.ip('route', 'add', 'default', 'via', gateway);
      }
      execFileSync(...inNamespace(router, 'sh', '-c', 'echo 1 > /proc/sys/net/ipv4/ip_forward'));
      return made;
    } catch (error) {
      made[Symbol.dispose]();
      throw error;
    }
  }

  [Symbol.dispose](): void {
    for (const name of [this.far.namespace, this.#router]) {
      try {
        ip('netns', 'delete', name);
      } catch {
        // It was not made.
      }
    }
  }
}

/** A command in a network namespace. The mounts stay: `ip netns exec` would hide the control groups. */
export function inNamespace(namespace: string, ...command: string[]): [file: string, args: string[]] {
  return ['nsenter', [`--net=/run/netns/${namespace}`, '--', ...command]];
}
