/** The network of a runner, with 'the internet' and a name server, in a file that called `isolateNetwork`. */
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import dnsPacket from 'dns-packet';
import pino from 'pino';
import { serviceTag } from '../../src/network/address-plan.ts';
import type { TakeOptions } from '../../src/network/slot-pool.ts';
import { listNetns } from '../../src/network/host-state.ts';
import { Network } from '../../src/network/network.ts';
import type { NetworkOptions } from '../../src/network/network-options.ts';
import { run } from '../../src/process/index.ts';
import { attachGuest, createInternet, type Namespace } from './namespaces.ts';

export interface NetworkWorldOptions {
  /** Addresses of a name; undefined when there is none such. */
  resolve: (name: string) => string[] | undefined;
  /** Time to live of its answers, in seconds. */
  ttl?: number;
  /** More options, which may depend on 'the internet'. */
  network?:
    | Partial<NetworkOptions>
    | ((internet: Namespace, stack: AsyncDisposableStack) => Promise<Partial<NetworkOptions>>);
}

export class NetworkWorld implements AsyncDisposable {
  readonly home: string;
  /** Begins the names of namespaces of this process. */
  readonly unique: string;
  readonly internet: Namespace;
  /** The one that is open; closed with the world. */
  network: Network;
  readonly #options: NetworkOptions;
  readonly #stack: AsyncDisposableStack;

  private constructor(
    options: NetworkOptions,
    network: Network,
    unique: string,
    internet: Namespace,
    stack: AsyncDisposableStack,
  ) {
    this.home = options.identity;
    this.unique = unique;
    this.internet = internet;
    this.network = network;
    this.#options = options;
    this.#stack = stack;
  }

  static async start({ resolve, ttl = 1, network }: NetworkWorldOptions): Promise<NetworkWorld> {
    await using stack = new AsyncDisposableStack();
    const home = await temporaryFolder('releap-net-');
    stack.defer(() => rm(home, { recursive: true, force: true }));
    // Names of namespaces outlive this process, whatever else of a failed test does not.
    stack.defer(() => removeNamespaces(home));
    const upstream = await startNameServer(resolve, ttl, stack);
    const unique = `t${process.pid}`;
    const internet = stack.use(await createInternet(`${unique}-inet`));
    const options = {
      dir: join(home, 'network'),
      identity: home,
      listenHost: '127.0.0.1',
      log: pino({ level: process.env['TEST_LOG'] ?? 'silent' }),
      slots: 8,
      ahead: 2,
      withholdMs: 20,
      dnsUpstreams: [upstream],
      runDir: join(home, 'run'),
      deniedPath: (vmId: string) => join(home, 'logs', vmId, 'denied.json'),
      ...(typeof network === 'function' ? await network(internet, stack) : network),
    };
    const opened = await Network.open(options);
    const world: NetworkWorld = new NetworkWorld(options, opened, unique, internet, stack.move());
    world.#stack.defer(() => world.network.close());
    return world;
  }

  options(over: Partial<NetworkOptions> = {}): NetworkOptions {
    return { ...this.#options, ...over };
  }

  /** Opens the network again, after it was detached or closed. */
  async reopen(over: Partial<NetworkOptions> = {}): Promise<void> {
    this.network = await Network.open(this.options(over));
  }

  async guest(
    vmId: string,
    egress?: { enabled: boolean; allow: string[] },
    options: TakeOptions = {},
  ): Promise<Namespace> {
    const slot = await this.network.take(vmId, { egress, ...options });
    return await attachGuest(`${this.unique}-${vmId}`, slot);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack.disposeAsync();
  }
}

async function removeNamespaces(home: string): Promise<void> {
  const names = (await listNetns()).filter((name) => name.startsWith(`rl${serviceTag(home)}-`));
  for (const name of names) await run('ip', ['netns', 'delete', name]);
}

/** Answers for all names, at a port of its own. @returns `address:port` */
export async function startNameServer(
  resolve: (name: string) => string[] | undefined,
  ttl: number,
  stack: AsyncDisposableStack,
): Promise<string> {
  const socket = createSocket('udp4');
  socket.on('message', (bytes, peer) => {
    const { id = 0, questions = [] } = dnsPacket.decode(bytes);
    const name = questions[0]?.name ?? '';
    const found = resolve(name);
    const answers = (found ?? []).map((data) => ({ name, type: 'A' as const, ttl, data }));
    const flags = found === undefined ? 3 : 0;
    const reply = dnsPacket.encode({ id, type: 'response', flags, questions, answers });
    socket.send(reply, peer.port, peer.address);
  });
  socket.bind(0, '127.0.0.1');
  await once(socket, 'listening');
  stack.defer(() => void socket.close());
  return `127.0.0.1:${socket.address().port}`;
}
