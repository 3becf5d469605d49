import {
  DomainSet,
  type EgressRules,
  type NetdDenial,
  type NetdForwardState,
  type NetdPin,
  type NetdSandbox,
  parseCidr,
  parseNameServer,
} from '@releap/contract/netd';
import { type Denial, Denials } from './denied/denials.ts';
import { DnsForwarder } from './dns/forwarder.ts';
import type { DnsClient } from './dns/responder.ts';
import type { ProxiedClient } from './egress/egress-proxy.ts';
import { EgressProxy } from './egress/egress-proxy.ts';
import { ResolvedNames } from './egress/resolved-names.ts';
import { PortForwarder } from './forwards/port-forwarder.ts';
import { SocketInterceptor } from './intercept/socket-interceptor.ts';
import type { Log } from './log.ts';
import { Pins } from './pins.ts';

/** What a runner says of the host. */
export interface HostConfig {
  dns: { address: string; port?: number };
  name_servers?: string[];
  intercept_socket?: string;
  listen_host: string;
}

export interface ServiceOptions {
  log: Log;
  /** Has addresses opened for a sandbox; resolves when they are, rejects when they cannot be. */
  pin: (vmId: string, pins: NetdPin[]) => Promise<void>;
  /** The name server listens at another port than before. */
  onDnsPort: (port: number) => void;
}

class Client implements DnsClient, ProxiedClient {
  readonly vmId: string;
  readonly address: string;
  readonly pins: Pins;
  readonly denials = new Denials();
  readonly #names = new ResolvedNames();
  readonly #lookUp: (name: string, client: DnsClient) => Promise<readonly string[]>;
  rules: EgressRules | undefined;
  /** Where its secrets may be sent. */
  intercept: DomainSet | undefined;

  constructor(
    vmId: string,
    address: string,
    pins: Pins,
    lookUp: (name: string, client: DnsClient) => Promise<readonly string[]>,
  ) {
    this.#lookUp = lookUp;
    this.vmId = vmId;
    this.address = address;
    this.pins = pins;
  }

  pin(pins: readonly NetdPin[]): Promise<void> {
    return this.pins.pin(pins);
  }

  resolved(name: string, pins: readonly NetdPin[]): void {
    this.#names.add(name, pins);
  }

  /** What an earlier netd has answered is not known: the name is resolved once more. */
  async resolves(name: string, address: string): Promise<boolean> {
    if (this.#names.has(name, address)) return true;
    const found: readonly string[] = await this.#lookUp(name, this).catch(() => []);
    return found.includes(address);
  }

  deny(denial: Denial): void {
    this.denials.add(denial);
  }
}

const DNS_RETRY_MS = 1_000;

/** What netd serves: the name server and the forwards of the sandboxes that it was told of. */
export class Service {
  readonly #options: ServiceOptions;
  readonly #clients = new Map<string, Client>();
  readonly #byAddress = new Map<string, Client>();
  #host: HostConfig | undefined;
  #dns: DnsForwarder | undefined;
  #dnsChange: Promise<void> = Promise.resolve();
  #ports: PortForwarder | undefined;
  #egress: EgressProxy | undefined;
  readonly #interceptor: SocketInterceptor;

  constructor(options: ServiceOptions) {
    this.#options = options;
    this.#interceptor = new SocketInterceptor((vmId) => this.#clients.get(vmId)?.intercept, options.log);
  }

  get isEmpty(): boolean {
    return this.#clients.size === 0;
  }

  /** Where the name server listens; undefined until it does. */
  get dnsPort(): number | undefined {
    return this.#dns?.port;
  }

  /** Serves connections that arrive at this descriptor. @returns the port of its socket */
  async openEgress(fd: number): Promise<number> {
    this.#egress = await EgressProxy.open({
      fd,
      clientOf: (address) => this.#byAddress.get(address),
      interceptor: this.#interceptor,
    });
    return this.#egress.port;
  }

  /** Keeps what is open when the host is still the same. */
  configure(host: HostConfig): void {
    const before = this.#host;
    this.#host = host;
    this.#interceptor.path = host.intercept_socket;
    if (before?.listen_host !== host.listen_host) {
      void this.#ports?.close();
      this.#ports = new PortForwarder(host.listen_host, this.#options.log);
    }
    const isSame =
      before?.dns.address === host.dns.address && sameList(before.name_servers, host.name_servers);
    if (!isSame) this.#dnsChange = this.#dnsChange.then(() => this.#openDns(host));
  }

  put(sandbox: NetdSandbox): Promise<NetdForwardState[] | undefined> {
    const { vm_id: vmId, address, egress, intercept, forwards } = sandbox;
    let client = this.#clients.get(vmId);
    if (client?.address !== address) {
      if (client !== undefined) this.#forget(client);
      client = new Client(
        vmId,
        address,
        new Pins((pins) => this.#options.pin(vmId, pins)),
        async (name, asking) => {
          return (await this.#dns?.addressesOf(name, asking)) ?? [];
        },
      );
      this.#clients.set(vmId, client);
      this.#byAddress.set(address, client);
    }
    client.rules =
      egress === undefined
        ? undefined
        : {
            domains: DomainSet.of(egress.domains),
            publicNets: egress.public_networks.flatMap((text) => parseCidr(text) ?? []),
            privateNets: egress.private_networks.flatMap((text) => parseCidr(text) ?? []),
            ineffective: [],
          };
    if (intercept !== undefined) client.intercept = DomainSet.of(intercept);
    if (forwards === undefined) return Promise.resolve(undefined);
    return this.#ports?.set(vmId, address, forwards) ?? Promise.resolve(undefined);
  }

  async remove(vmId: string): Promise<void> {
    const client = this.#clients.get(vmId);
    if (client !== undefined) this.#forget(client);
    await this.#ports?.remove(vmId);
  }

  /** Removes what is not in `keep`. */
  async keepOnly(keep: ReadonlySet<string>): Promise<void> {
    const gone = [...this.#clients.keys()].filter((vmId) => !keep.has(vmId));
    await Promise.all(gone.map((vmId) => this.remove(vmId)));
  }

  /** What a sandbox was denied; nothing of one that is not served. */
  denied(vmId: string): NetdDenial[] {
    return this.#clients.get(vmId)?.denials.list() ?? [];
  }

  /** Takes nothing new; what is open stays open. */
  async drain(): Promise<void> {
    this.#egress?.close();
    await this.#dnsChange;
    // What it resolves for connections that are undecided yet, it still does.
    await Promise.all([this.#dns?.close(), this.#ports?.drain()]);
  }

  /** That are passed on. */
  get connections(): number {
    return (this.#egress?.connections ?? 0) + (this.#ports?.connections ?? 0);
  }

  forgetPins(): void {
    for (const { pins } of this.#clients.values()) pins.forget();
  }

  #forget(client: Client): void {
    this.#clients.delete(client.vmId);
    this.#egress?.drop(client.address);
    // Its address may be another's already.
    if (this.#byAddress.get(client.address) === client) this.#byAddress.delete(client.address);
  }

  async #openDns(host: HostConfig): Promise<void> {
    const { log, onDnsPort } = this.#options;
    await this.#dns?.close();
    this.#dns = undefined;
    while (this.#host === host) {
      try {
        this.#dns = await DnsForwarder.open({
          ...host.dns,
          servers: (host.name_servers ?? []).map(parseNameServer),
          clientOf: (address) => this.#byAddress.get(address),
          log,
        });
        onDnsPort(this.#dns.port);
        return;
      } catch (error) {
        log.error({ address: host.dns.address, error: String(error) }, 'the name server cannot listen');
        await new Promise((resolve) => setTimeout(resolve, DNS_RETRY_MS));
      }
    }
  }
}

function sameList(a: readonly string[] | undefined, b: readonly string[] | undefined): boolean {
  return a?.join() === b?.join();
}
