import { basename, dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { PortMapping } from '@releap/contract';
import {
  type EgressRules,
  formatCidr,
  formatNameServer,
  HELPER_START_MS,
  type NameServer,
  NETD_PROTOCOL,
  NETD_REPLY_MAX_BYTES,
  type NetdDenial,
  type NetdForward,
  type NetdForwardState,
  type NetdPin,
  type NetdSandbox,
  NetdToRunner,
  type RunnerToNetd,
} from '@releap/contract/netd';
import type { Logger } from 'pino';
import type { CgroupTree } from '../../cgroup/cgroup-tree.ts';
import { type HelperConnection, HelperLostError, type HelperProtocol } from './helper-connection.ts';
import { HelperProcess, LISTENING_DESCRIPTOR, netdVersion, SHARED_FOLDER } from './helper-process.ts';
import { type HelperRequest, HelperSupervisor } from './helper-supervisor.ts';

export const NETD: HelperProtocol<RunnerToNetd, typeof NetdToRunner> = {
  name: 'netd',
  version: NETD_PROTOCOL,
  received: NetdToRunner,
  receivedMaxBytes: NETD_REPLY_MAX_BYTES,
  waitingMaxBytes: 16 * 1024 * 1024,
};
type Connection = HelperConnection<RunnerToNetd, typeof NetdToRunner>;

export interface NetdOptions {
  /** A folder of its own. */
  dir: string;
  cgroups: CgroupTree;
  /** The user that it becomes. */
  uid: number;
  /** Where sandboxes' questions arrive. */
  dnsAddress: string;
  nameServers: readonly NameServer[];
  /** Address of the host at which declared ports are published. */
  listenHost: string;
  /** Where the interceptor listens for connections that netd hands over, on the host. Its folder exists. */
  interceptSocket?: string | undefined;
  /** What it serves from the first moment. */
  sandboxes: readonly NetdSandbox[];
  /** Default: that of this installation. */
  version?: string | undefined;
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

const FORWARD_DEADLINE_MS = 30_000;

/**
 * The runner's side of netd: keeps one running, and sends it the whole configuration whenever it was started again. Nothing here
 * waits for netd but who asks for ports.
 */
export class Netd {
  readonly #options: NetdOptions;
  readonly #helper: HelperSupervisor<RunnerToNetd, typeof NetdToRunner>;
  readonly #sandboxes = new Map<string, NetdSandbox>();
  #linked = Promise.withResolvers<Connection>();
  /** The netd of now has ended. */
  #dead = Promise.withResolvers<void>();
  #dns = Promise.withResolvers<number>();
  #dnsPort: number | undefined;
  #egressPort: number | undefined;
  #nameServers: readonly NameServer[];

  private constructor(options: NetdOptions) {
    this.#options = options;
    this.#nameServers = options.nameServers;
    const { dir, uid, dnsAddress, interceptSocket, cgroups, replyMs, version = netdVersion(), log } = options;
    const args = [String(uid), LISTENING_DESCRIPTOR, version];
    this.#helper = new HelperSupervisor({
      process: new HelperProcess(
        dir,
        {
          name: 'netd',
          file: 'src/main.ts',
          args,
          listenAddress: dnsAddress,
          ...(interceptSocket && { shared: { folder: dirname(interceptSocket), access: 'read' } }),
        },
        cgroups,
      ),
      version,
      drains: true,
      protocol: NETD,
      replyMs,
      serve: (connection) => this.#serve(connection),
      onHello: ({ egress_port: port }) => this.#setEgressPort(port),
      onRequest: (request, connection) => this.#onRequest(request, connection),
      onDead: () => {
        this.#dead.resolve();
        this.#dead = Promise.withResolvers();
      },
      log,
    });
    for (const sandbox of options.sandboxes) this.#sandboxes.set(sandbox.vm_id, sandbox);
  }

  /** Finds the netd of an earlier runner, or starts one. @throws when its name server does not listen in time */
  static async open(options: NetdOptions): Promise<Netd> {
    const netd = new Netd(options);
    netd.#helper.start();
    const late = sleep(HELPER_START_MS, undefined, { ref: false }).then(async () => {
      const words = await netd.#helper.lastOutput();
      throw new Error(`netd did not start within ${HELPER_START_MS} ms${words === '' ? '' : `: ${words}`}`);
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
    return await this.#helper.pid();
  }

  /** How often it has ended by itself, or hung and was ended. */
  get ends(): number {
    return this.#helper.ends;
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
    const { connection, isEnding } = this.#helper;
    const former = this.#helper.draining.map(async ({ connection: own, ended }) => {
      // It is ended when it does not answer, or is gone.
      await own.request({ type: 'remove', vm_id: vmId }).catch(() => ended);
    });
    const dead = this.#dead.promise;
    let isLost = isEnding;
    try {
      await connection?.request({ type: 'remove', vm_id: vmId });
    } catch (error) {
      if (!(error instanceof HelperLostError)) throw error;
      isLost = true;
    }
    // One that is gone leads nowhere, but one that has hung is only gone when it was killed.
    if (isLost && !this.#helper.isStopping) await dead;
    await Promise.all(former);
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

  /** What netd has denied a sandbox. @throws HelperLostError while netd does not run */
  async denied(vmId: string): Promise<NetdDenial[]> {
    const { connection } = this.#helper;
    if (connection === undefined) throw new HelperLostError('netd does not run');
    return (await connection.request({ type: 'denied', vm_id: vmId })).denied ?? [];
  }

  /** What was opened by `onPin` is not open any more. */
  forgetPins(): void {
    this.#helper.connection?.tell({ type: 'forget_pins' });
  }

  /** The runner ends, netd continues. */
  async detach(): Promise<void> {
    this.#linked.promise.catch(() => undefined);
    this.#linked.reject(new HelperLostError('the runner is ending'));
    await this.#helper.detach();
    // One that has hung is not ended any more.
    this.#dead.resolve();
  }

  /** Ends netd. */
  async stop(): Promise<void> {
    await this.detach();
    await this.#helper.stop();
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
        if (!(error instanceof HelperLostError)) throw error;
      }
    }
  }

  async #whenLinked(signal: AbortSignal): Promise<Connection> {
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
    this.#helper.connection?.tell({ type: 'put', sandbox });
  }

  async #serve(connection: Connection): Promise<void> {
    this.#configure(connection);
    for (const sandbox of this.#sandboxes.values()) connection.tell({ type: 'put', sandbox });
    connection.tell({ type: 'synced' });
    this.#linked.resolve(connection);
    await connection.lost;
    if (!this.#helper.isStopping) this.#linked = Promise.withResolvers();
  }

  /** Has it ask these from now on. */
  setNameServers(nameServers: readonly NameServer[]): void {
    this.#nameServers = nameServers;
    if (this.#helper.connection !== undefined) this.#configure(this.#helper.connection);
  }

  #configure(connection: Connection): void {
    const { dnsAddress, listenHost, interceptSocket } = this.#options;
    connection.send({
      type: 'hello',
      protocol: NETD_PROTOCOL,
      dns: { address: dnsAddress, ...(this.#dnsPort === undefined ? {} : { port: this.#dnsPort }) },
      name_servers: this.#nameServers.map(formatNameServer),
      ...(interceptSocket === undefined
        ? {}
        : { intercept_socket: join(SHARED_FOLDER, basename(interceptSocket)) }),
      listen_host: listenHost,
    });
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

  #onRequest(request: HelperRequest<typeof NetdToRunner>, connection: Connection): void {
    const { log, onPin, onDnsPort } = this.#options;
    if (request.type === 'dns') {
      const before = this.#dnsPort;
      this.#dnsPort = request.port;
      this.#dns.resolve(request.port);
      if (before === undefined || before === request.port) return;
      onDnsPort(request.port).catch((err: unknown) =>
        log.error({ err }, 'questions cannot be led to the name server'),
      );
      return;
    }
    const { id, vm_id: vmId, pins } = request;
    onPin(vmId, pins).then(
      () => connection.send({ type: 'pinned', id, granted: true }),
      () => connection.send({ type: 'pinned', id, granted: false }),
    );
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
