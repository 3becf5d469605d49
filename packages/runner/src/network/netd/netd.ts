import { setTimeout as sleep } from 'node:timers/promises';
import type { PortMapping } from '@releap/contract';
import {
  type EgressRules,
  formatCidr,
  NETD_PROTOCOL,
  type NetdDenial,
  type NetdForward,
  type NetdForwardState,
  type NetdPin,
  type NetdSandbox,
  type NetdToRunner,
  RateLimit,
} from '@releap/contract/netd';
import type { Logger } from 'pino';
import { NetdConnection, NetdLostError } from './netd-connection.ts';
import { NetdProcess, netdVersion } from './netd-process.ts';

export interface NetdOptions {
  /** A folder of its own. */
  dir: string;
  /** The user that it becomes. */
  uid: number;
  /** Where sandboxes' questions arrive. */
  dnsAddress: string;
  nameServers?: readonly string[] | undefined;
  /** Address of the host at which declared ports are published. */
  listenHost: string;
  /** Where the interceptor listens for connections that netd hands over. */
  interceptSocket?: string | undefined;
  /** What it serves from the first moment. */
  sandboxes: readonly NetdSandbox[];
  /** It has so long for whatever it is told; one that takes longer has hung. Default 20 000 ms. */
  replyMs?: number;
  /** Opens addresses for a sandbox; in force when it resolves. */
  onPin: (vmId: string, pins: readonly NetdPin[]) => Promise<void>;
  /** The name server listens elsewhere than before. */
  onDnsPort: (port: number) => Promise<void>;
  /** Redirected connections are to be led to another port than before. */
  onEgressPort: (port: number) => Promise<void>;
  log: Logger;
}

/** A port as declared at create. */
export interface DeclaredPort {
  vm_port: number;
  proto: 'tcp' | 'udp';
}

const START_DEADLINE_MS = 15_000;
const REPLY_DEADLINE_MS = 20_000;
const FORWARD_DEADLINE_MS = 30_000;
const CONNECT_POLL_MS = 20;
const RESTART_DELAY_MS = { first: 100, most: 10_000 };
/** One that served this long before it ended starts again without delay. */
const STEADY_MS = 30_000;
const PING_MS = 5_000;
const LOG_LINES = { perSecond: 50, burst: 500 };

/**
 * The runner's side of netd: keeps one running, and sends it the whole configuration whenever it was started again. Nothing here
 * waits for netd but who asks for ports.
 */
export class Netd {
  readonly #options: NetdOptions;
  readonly #process: NetdProcess;
  readonly #sandboxes = new Map<string, NetdSandbox>();
  readonly #logged = new RateLimit(LOG_LINES);
  readonly #stopping = new AbortController();
  readonly #ping: NodeJS.Timeout;
  #running: Promise<void> | undefined;
  #connection: NetdConnection | undefined;
  #linked = Promise.withResolvers<NetdConnection>();
  /** The netd of now has ended. */
  #dead = Promise.withResolvers<void>();
  #dns = Promise.withResolvers<number>();
  #dnsPort: number | undefined;
  #egressPort: number | undefined;

  private constructor(options: NetdOptions) {
    this.#options = options;
    this.#process = NetdProcess.netd(options.dir, options.uid, options.dnsAddress);
    for (const sandbox of options.sandboxes) this.#sandboxes.set(sandbox.vm_id, sandbox);
    this.#ping = setInterval(() => {
      this.#connection?.request({ type: 'ping' }).catch(() => undefined);
    }, PING_MS).unref();
  }

  /** Finds the netd of an earlier runner, or starts one. @throws when its name server does not listen in time */
  static async open(options: NetdOptions): Promise<Netd> {
    const netd = new Netd(options);
    netd.#running = netd.#keepRunning();
    const late = sleep(START_DEADLINE_MS, undefined, { ref: false }).then(async () => {
      const words = await netd.#process.lastOutput();
      throw new Error(`netd did not start within ${START_DEADLINE_MS} ms${words === '' ? '' : `: ${words}`}`);
    });
    try {
      await Promise.race([netd.#dns.promise, late]);
    } catch (error) {
      await netd.stop();
      throw error;
    }
    return netd;
  }

  get dnsPort(): number {
    if (this.#dnsPort === undefined) throw new Error('netd has not started');
    return this.#dnsPort;
  }

  /** Undefined while there is none: redirected connections are refused then. */
  get egressPort(): number | undefined {
    return this.#egressPort;
  }

  /** The process that serves, for tests and people. */
  async pid(): Promise<number | undefined> {
    return (await this.#process.running())?.pid;
  }

  /** Whether it was told of that sandbox. */
  serves(vmId: string): boolean {
    return this.#sandboxes.has(vmId);
  }

  /** From now on the sandbox at this address is answered, by these rules. */
  put(vmId: string, address: string, rules: EgressRules | undefined): void {
    const sandbox: NetdSandbox = { ...netdSandbox(vmId, address, rules), forwards: [] };
    this.#sandboxes.set(vmId, sandbox);
    this.#tell(sandbox);
  }

  /** Connections of the sandbox to these domains are handed over to the interceptor from now on. */
  intercept(vmId: string, domains: readonly string[]): void {
    const before = this.#sandboxes.get(vmId);
    if (before === undefined || before.intercept?.join() === domains.join()) return;
    const sandbox: NetdSandbox = { ...before, intercept: [...domains] };
    this.#sandboxes.set(vmId, sandbox);
    this.#tell(sandbox);
  }

  /** Resolves when nothing leads to its address any more, whatever has become of netd. */
  async remove(vmId: string): Promise<void> {
    if (!this.#sandboxes.delete(vmId)) return;
    const dead = this.#dead.promise;
    try {
      await this.#connection?.request({ type: 'remove', vm_id: vmId });
    } catch (error) {
      if (!(error instanceof NetdLostError)) throw error;
      // One that is gone leads nowhere, but one that has hung is only gone when it was killed.
      if (!this.#stopping.signal.aborted) await dead;
    }
  }

  /**
   * Publishes the ports of a sandbox and returns where. A port that is published already stays as it is. `previous`
   * is the mapping of an earlier run: its ports are taken again unless another process has them by now.
   */
  async forward(
    vmId: string,
    ports: readonly DeclaredPort[],
    previous: readonly PortMapping[] = [],
  ): Promise<PortMapping[]> {
    const before = this.#sandboxes.get(vmId);
    if (before === undefined) throw new Error(`sandbox ${vmId} has no network to publish ports of`);
    const wishes = uniquePorts(ports).map(({ vm_port, proto }): NetdForward => {
      const same = (one: { vm_port: number; proto: string }): boolean =>
        one.vm_port === vm_port && one.proto === proto;
      const wish = before.forwards?.find(same)?.host_port ?? previous.find(same)?.host_port;
      return { vm_port, proto, ...(wish === undefined ? {} : { host_port: wish }) };
    });
    if (wishes.length === 0 && (before.forwards ?? []).length === 0) {
      // A sandbox without ports does not wait for netd.
      this.#sandboxes.set(vmId, { ...before, forwards: [] });
      return [];
    }
    let states = await this.#publish(vmId, wishes);
    const taken = states.filter(({ error }) => error === 'EADDRINUSE');
    if (taken.length > 0) {
      for (const { vm_port } of taken) {
        const wish = wishes.find((one) => one.vm_port === vm_port)?.host_port;
        this.#options.log.warn({ host_port: wish, vm_port }, 'former host port is in use; taking another');
      }
      states = await this.#publish(
        vmId,
        states.map(({ proto, vm_port, host_port }) => ({
          proto,
          vm_port,
          ...(host_port === undefined ? {} : { host_port }),
        })),
      );
    }
    return states.map(({ proto, vm_port, host_port, error }) => {
      if (host_port === undefined) throw new Error(`port ${vm_port}/${proto} cannot be published: ${error}`);
      return { vm_port, proto, host_port };
    });
  }

  /** What netd has denied a sandbox. @throws NetdLostError while netd does not run */
  async denied(vmId: string): Promise<NetdDenial[]> {
    if (this.#connection === undefined) throw new NetdLostError('netd does not run');
    return (await this.#connection.request({ type: 'denied', vm_id: vmId })).denied ?? [];
  }

  /** What was opened by `onPin` is not open any more. */
  forgetPins(): void {
    this.#connection?.request({ type: 'forget_pins' }).catch(() => undefined);
  }

  /** The runner ends, netd continues. */
  async detach(): Promise<void> {
    this.#stopping.abort();
    clearInterval(this.#ping);
    this.#linked.promise.catch(() => undefined);
    this.#linked.reject(new NetdLostError('the runner is ending'));
    this.#connection?.end('the runner is ending');
    await this.#running;
  }

  /** Ends netd. */
  async stop(): Promise<void> {
    await this.detach();
    await this.#process.remove();
  }

  /** Makes these the ports of a sandbox, by this netd or the next one. */
  async #publish(vmId: string, forwards: NetdForward[]): Promise<NetdForwardState[]> {
    const signal = AbortSignal.timeout(FORWARD_DEADLINE_MS);
    for (;;) {
      const connection = await this.#whenLinked(signal);
      const sandbox = this.#sandboxes.get(vmId);
      if (sandbox === undefined)
        throw new Error(`sandbox ${vmId} was released while its ports were being published`);
      try {
        const { forwards: states } = await connection.request({
          type: 'put',
          sandbox: { ...sandbox, forwards },
        });
        if (states === undefined) throw new Error('netd said nothing of the ports');
        const now = this.#sandboxes.get(vmId);
        if (now?.address !== sandbox.address)
          throw new Error(`sandbox ${vmId} was released while its ports were being published`);
        this.#sandboxes.set(vmId, { ...now, forwards: withPorts(forwards, states) });
        return states;
      } catch (error) {
        if (!(error instanceof NetdLostError)) throw error;
      }
    }
  }

  async #whenLinked(signal: AbortSignal): Promise<NetdConnection> {
    const late = Promise.withResolvers<never>();
    const onAbort = (): void => late.reject(new Error('netd does not run'));
    signal.addEventListener('abort', onAbort);
    try {
      signal.throwIfAborted();
      return await Promise.race([this.#linked.promise, late.promise]);
    } finally {
      signal.removeEventListener('abort', onAbort);
    }
  }

  #tell(sandbox: NetdSandbox): void {
    // One that is gone gets everything when it is back.
    this.#connection?.request({ type: 'put', sandbox }).catch(() => undefined);
  }

  async #keepRunning(): Promise<void> {
    const { log } = this.#options;
    const { signal } = this.#stopping;
    let delay = RESTART_DELAY_MS.first;
    while (!signal.aborted) {
      const began = performance.now();
      const why = await this.#serve().catch((error: unknown) =>
        error instanceof Error ? error.message : String(error),
      );
      if (signal.aborted) return;
      // A netd whose connection is lost may still listen, and it may have hung: only a dead one leads nowhere.
      await this.#process.kill().catch((err: unknown) => log.error({ err }, 'netd could not be ended'));
      this.#dead.resolve();
      this.#dead = Promise.withResolvers();
      if (performance.now() - began > STEADY_MS) delay = RESTART_DELAY_MS.first;
      const output = await this.#process.lastOutput();
      log.error({ why, again_in_ms: delay, ...(output === '' ? {} : { output }) }, 'netd ended');
      await sleep(delay, undefined, { signal }).catch(() => undefined);
      delay = Math.min(delay * 2, RESTART_DELAY_MS.most);
    }
  }

  /** From the start of one, or from finding it, to its end. @returns why it ended */
  async #serve(): Promise<string> {
    const connection = await this.#connect();
    const { dnsAddress, nameServers, listenHost, interceptSocket } = this.#options;
    connection.send({
      type: 'hello',
      protocol: NETD_PROTOCOL,
      dns: { address: dnsAddress, ...(this.#dnsPort === undefined ? {} : { port: this.#dnsPort }) },
      ...(nameServers === undefined ? {} : { name_servers: [...nameServers] }),
      ...(interceptSocket === undefined ? {} : { intercept_socket: interceptSocket }),
      listen_host: listenHost,
    });
    this.#connection = connection;
    for (const sandbox of this.#sandboxes.values()) this.#tell(sandbox);
    connection.request({ type: 'synced' }).catch(() => undefined);
    this.#linked.resolve(connection);
    const why = await connection.lost;
    this.#connection = undefined;
    if (!this.#stopping.signal.aborted) this.#linked = Promise.withResolvers();
    return why;
  }

  async #connect(): Promise<NetdConnection> {
    const version = netdVersion();
    if ((await this.#process.running()) !== undefined) {
      const found = await this.#handshake(version).catch(() => undefined);
      if (found !== undefined) return found;
    }
    await this.#process.start();
    const end = performance.now() + START_DEADLINE_MS;
    for (;;) {
      await sleep(CONNECT_POLL_MS);
      try {
        return await this.#handshake(version);
      } catch (error) {
        this.#stopping.signal.throwIfAborted();
        if (performance.now() > end || (await this.#process.running()) === undefined) throw error;
      }
    }
  }

  /** @throws when none listens, or one of another version */
  async #handshake(version: string): Promise<NetdConnection> {
    const greeted = Promise.withResolvers<void>();
    const replyMs = this.#options.replyMs ?? REPLY_DEADLINE_MS;
    const connection = await NetdConnection.open(this.#process.socketPath, replyMs, (event) => {
      if (event.type !== 'hello') return this.#onEvent(event, connection);
      if (event.protocol === NETD_PROTOCOL && event.version === version) {
        this.#setEgressPort(event.egress_port);
        greeted.resolve();
      } else greeted.reject(new Error(`it is of version ${event.version}, protocol ${event.protocol}`));
    });
    const timer = setTimeout(() => connection.end('no greeting'), START_DEADLINE_MS);
    void connection.lost.then((why) => greeted.reject(new NetdLostError(why)));
    try {
      await greeted.promise;
      return connection;
    } catch (error) {
      connection.end('it is to be replaced');
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  #setEgressPort(port: number | undefined): void {
    const before = this.#egressPort;
    this.#egressPort = port;
    if (before === undefined || port === undefined || before === port) return;
    const { log, onEgressPort } = this.#options;
    onEgressPort(port).catch((err: unknown) =>
      log.error({ err }, 'connections cannot be led to the egress proxy'),
    );
  }

  #onEvent(event: Exclude<NetdToRunner, { type: 'done' | 'hello' }>, connection: NetdConnection): void {
    const { log, onPin, onDnsPort } = this.#options;
    switch (event.type) {
      case 'dns': {
        const before = this.#dnsPort;
        this.#dnsPort = event.port;
        this.#dns.resolve(event.port);
        if (before === undefined || before === event.port) return;
        onDnsPort(event.port).catch((err: unknown) =>
          log.error({ err }, 'questions cannot be led to the name server'),
        );
        return;
      }
      case 'pin': {
        const { id, vm_id: vmId, pins } = event;
        onPin(vmId, pins).then(
          () => connection.send({ type: 'pinned', id, granted: true }),
          () => connection.send({ type: 'pinned', id, granted: false }),
        );
        return;
      }
      case 'log':
        if (this.#logged.take()) log[event.level](event.facts, event.message);
    }
  }
}

/** As netd is told of it, without its forwards. */
export function netdSandbox(vmId: string, address: string, rules: EgressRules | undefined): NetdSandbox {
  return {
    vm_id: vmId,
    address,
    ...(rules === undefined
      ? {}
      : {
          egress: {
            domains: rules.domains.list(),
            public_networks: rules.publicNets.map(formatCidr),
            private_networks: rules.privateNets.map(formatCidr),
          },
        }),
  };
}

function withPorts(forwards: readonly NetdForward[], states: readonly NetdForwardState[]): NetdForward[] {
  return forwards.map((forward) => {
    const state = states.find((one) => one.proto === forward.proto && one.vm_port === forward.vm_port);
    return { ...forward, ...(state?.host_port === undefined ? {} : { host_port: state.host_port }) };
  });
}

function uniquePorts(ports: readonly DeclaredPort[]): DeclaredPort[] {
  return [...new Map(ports.map((port) => [`${port.proto}/${port.vm_port}`, port])).values()];
}
