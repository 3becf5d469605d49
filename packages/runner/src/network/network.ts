/** The network of one service's sandboxes: slots, firewall, name server and published ports, as one thing. */
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { EgressDenial, PortMapping } from '@releap/contract';
import { cidrs, formatCidr, parseEgress } from '@releap/contract/netd';
import type { Logger } from 'pino';
import { type AddressPlan, interceptUid, netdUid, slotPlan, storesUid, vethPrefix } from './address-plan.ts';
import { raiseBridge, removeBridge } from './bridge.ts';
import { CgroupTree } from '../cgroup/cgroup-tree.ts';
import { HostdService } from '../host/hostd-service.ts';
import { flowLimits } from './flow-limits.ts';
import type { SlotPolicy } from './host-rules.ts';
import { DeniedLog } from './denied-log.ts';
import { DeniedStore } from './denied-store.ts';
import { enableForwarding, restoreForwarding } from './forwarding.ts';
import { findDroppingChains, HostFirewall } from './host-firewall.ts';
import { NameServers } from './name-servers.ts';
import { Interceptor } from './intercept/interceptor.ts';
import { type DeclaredPort, Netd, netdSandbox } from './netd/netd.ts';
import type { NetworkOptions } from './network-options.ts';
import { openPlan } from './open-plan.ts';
import { raisePolicyRouting, removePolicyRouting } from './policy-routing.ts';
import type { Slot } from './slot.ts';
import { StoreProxy } from './stores/store-proxy.ts';
import { SlotPool, type TakeOptions } from './slot-pool.ts';
import { SlotStore } from './slot-store.ts';

interface Parts {
  plan: AddressPlan;
  pool: SlotPool;
  firewall: HostFirewall;
  netd: Netd;
  hostd: HostdService;
  interceptor: Interceptor | undefined;
  stores: StoreProxy | undefined;
  denied: DeniedLog;
  nameServers: NameServers;
  cgroups: CgroupTree;
  interceptFolder: string;
}

export class Network {
  readonly #options: NetworkOptions;
  readonly #log: Logger;
  readonly #parts: Parts;
  #detached: Promise<unknown> | undefined;
  readonly #taking = new Map<string, Promise<Slot>>();

  private constructor(options: NetworkOptions, parts: Parts) {
    this.#options = options;
    this.#log = options.log;
    this.#parts = parts;
  }

  /**
   * Brings the network up, or takes over what an earlier run left: its slots with their holders, their policies and
   * what was pinned for them. Rejects when a tool is missing or no block of addresses is free; then nothing stays that no sandbox of
   * an earlier run needs.
   */
  static async open(options: NetworkOptions): Promise<Network> {
    const { log, dir } = options;
    await mkdir(dir, { recursive: true, mode: 0o700 });
    const store = new SlotStore(join(dir, 'slots'));
    await using opened = new AsyncDisposableStack();
    const hostd = new HostdService(log);
    opened.defer(() => hostd.close());
    const plan = await openPlan(options, store, hostd);
    const runDir = options.runDir ?? DEFAULT_RUN_DIR;
    await enableForwarding(runDir);
    await raiseBridge(plan);
    await raisePolicyRouting(plan);

    const pool = await SlotPool.open({
      plan,
      store,
      hostd,
      ahead: options.ahead ?? DEFAULT_AHEAD,
      ...(options.idleCapacity && { idleCapacity: options.idleCapacity }),
      ...(options.withholdMs !== undefined && { withholdMs: options.withholdMs }),
      log,
    });
    const unlessUsed = async (remove: () => Promise<unknown>): Promise<void> => {
      if (pool.isUnused) await remove();
    };
    let removeFirewall = (): Promise<void> => Promise.resolve();
    opened.defer(() =>
      unlessUsed(async () => {
        await removeFirewall();
        await removePolicyRouting(plan);
        await removeBridge(plan);
        await restoreForwarding(runDir);
      }),
    );
    opened.defer(() => (pool.isUnused ? pool.close() : pool.detach()));
    const policies = new Map<number, SlotPolicy>();
    const openable = cidrs(options.tenantPrivateNetworks ?? []);
    for (const holder of pool.holders()) {
      const rules = parseEgress(holder.egress, openable);
      const { intercept = false } = holder;
      if (rules !== undefined || intercept) policies.set(holder.slot.index, { rules, intercept });
    }
    // Netd of an earlier runner may ask and tell before the firewall is loaded.
    const loaded = Promise.withResolvers<HostFirewall>();
    loaded.promise.catch(() => undefined);
    const uid = netdUid(plan);
    const interceptFolder = join(runDir, `intercept-${plan.tag}`);
    const interceptSocket = join(interceptFolder, 'guest.sock');
    const nameServers = await NameServers.open(options.dnsUpstreams);
    // It is in the root of netd from the start, wherever an interceptor begins to run later.
    await mkdir(interceptFolder, { recursive: true, mode: 0o711 });
    opened.defer(() => unlessUsed(() => rm(interceptFolder, { recursive: true, force: true })));
    // Apart from those of the VMs, all of which a reconciliation ends that no record names.
    const cgroups = await CgroupTree.open(join(options.identity, 'helpers'), { cores: HELPERS_CORES });
    opened.defer(() => cgroups.abandon());
    const netd = await Netd.open({
      cgroups,
      dir: join(dir, 'netd'),
      uid,
      dnsAddress: plan.serviceAddress,
      nameServers: nameServers.current,
      listenHost: options.listenHost,
      interceptSocket,
      sandboxes: [...pool.holders()].map(({ vmId, slot }) =>
        netdSandbox(vmId, slot.hostAddress, policies.get(slot.index)?.rules),
      ),
      onPin: async (vmId, pins) => {
        const slot = pool.adopt(vmId);
        if (slot === undefined) throw new Error(`${vmId} has no network`);
        await (await loaded.promise).pin(slot.index, pins);
      },
      version: options.netdVersion,
      ...(options.netdReplyMs === undefined ? {} : { replyMs: options.netdReplyMs }),
      onDnsPort: async (port) => await (await loaded.promise).setDnsPort(port),
      onEgressPort: async (port) => await (await loaded.promise).setEgressPort(port),
      log,
    });
    opened.defer(async () => {
      await netd.detach();
      await unlessUsed(() => netd.stop());
    });
    const denied = new DeniedLog({
      netd: (vmId) => netd.denied(vmId),
      firewall: async () => await (await loaded.promise).denials(),
      store: options.deniedPath && new DeniedStore(options.deniedPath),
    });
    const firewall = await HostFirewall.open({
      plan,
      netd: {
        dnsPort: netd.dnsPort,
        egressPort: netd.egressPort,
        uid,
        interceptUid: interceptUid(plan),
        clientUid: options.clientUid,
        nameServers: nameServers.current,
      },
      flows: await flowLimits(plan.slots),
      policies,
      watchMs: options.firewallWatchMs ?? DEFAULT_WATCH_MS,
      onPinsLost: () => netd.forgetPins(),
      onReload: async (denials) => {
        for (const { vmId, slot } of pool.holders())
          await denied
            .keepFirewall(vmId, slot, denials)
            .catch((err: unknown) => log.warn({ err, vm_id: vmId }, 'denied connections are forgotten'));
      },
      log,
    });
    loaded.resolve(firewall);
    removeFirewall = () => firewall.remove();
    opened.defer(() => firewall.detach());
    opened.defer(() => nameServers.close());
    await warnOfOthers(plan, log);
    log.info({ block: formatCidr(plan.block), table: plan.table, dns_port: netd.dnsPort }, 'network is up');
    const interceptor =
      options.secrets &&
      new Interceptor({
        ...options.secrets,
        cgroups,
        dir: join(dir, 'intercept'),
        guestSocket: interceptSocket,
        uid: interceptUid(plan),
        netdUid: uid,
        onDomains: (vmId, domains) => netd.intercept(vmId, domains),
        log,
      });
    const stores =
      options.stores &&
      new StoreProxy({
        ...options.stores,
        cgroups,
        dir: join(dir, 'stores'),
        uid: storesUid(plan),
        address: plan.serviceAddress,
        onPort: (port) => firewall.setStoresPort(port),
        log,
      });
    opened.defer(async () => {
      await Promise.all([interceptor?.detach(), stores?.detach()]);
      await unlessUsed(async () => {
        await interceptor?.stop();
        await stores?.stop();
      });
    });
    await stores?.recover([...pool.holders()].map(({ vmId, slot }) => ({ vmId, address: slot.hostAddress })));
    nameServers.follow(() => {
      // First the firewall: what netd asks is allowed.
      firewall.setNameServers(nameServers.current).then(
        () => netd.setNameServers(nameServers.current),
        (err: unknown) => log.error({ err }, 'netd cannot ask the new name servers of the host'),
      );
      stores?.restart();
    });
    opened.move();
    return new Network(options, {
      plan,
      pool,
      firewall,
      netd,
      hostd,
      denied,
      interceptor,
      stores,
      nameServers,
      cgroups,
      interceptFolder,
    });
  }

  /** For metrics. Helpers that this host does not have are not named. */
  get counts(): {
    slots: Record<string, number>;
    helperEnds: Record<string, number>;
    firewallRestores: number;
  } {
    const { pool, firewall, netd, interceptor, stores } = this.#parts;
    return {
      slots: pool.counts,
      helperEnds: {
        netd: netd.ends,
        ...(interceptor && { interceptor: interceptor.ends }),
        ...(stores && { 'store-proxy': stores.ends }),
      },
      firewallRestores: firewall.restores,
    };
  }

  /** The process that serves DNS and forwards. */
  netdPid(): Promise<number | undefined> {
    return this.#parts.netd.pid();
  }

  /**
   * Gives a sandbox its network; the same one when it has it already. The policy is in force when it resolves.
   * Rejects when all slots are taken, or on a policy entry of no known form.
   */
  async take(vmId: string, options: TakeOptions = {}): Promise<Slot> {
    const taking = this.#taking.get(vmId) ?? this.#take(vmId, options);
    this.#taking.set(vmId, taking);
    try {
      return await taking;
    } finally {
      this.#taking.delete(vmId);
    }
  }

  /**
   * Makes the network of a waiting machine that of a sandbox. The sandbox's policy is in force when it resolves;
   * when it rejects, the owner of the network still has to release it.
   */
  async transfer(from: string, vmId: string, options: TakeOptions = {}): Promise<Slot> {
    const { pool, firewall, netd } = this.#parts;
    const policy = this.#policy(vmId, options);
    const held = pool.adopt(from);
    if (held === undefined) throw new Error(`${from} has no network to hand over`);
    await firewall.addPolicy(held.index, policy);
    const slot = await pool.transfer(from, vmId, options);
    netd.put(vmId, slot.hostAddress, policy.rules);
    // The address is the new holder's by now; nothing was published for the one before.
    netd.remove(from).catch(() => undefined);
    return slot;
  }

  #policy(vmId: string, { egress, intercept = false }: TakeOptions): SlotPolicy {
    const rules = parseEgress(egress, cidrs(this.#options.tenantPrivateNetworks ?? []));
    if (rules !== undefined && rules.ineffective.length > 0) {
      this.#log.warn({ vm_id: vmId, entries: rules.ineffective }, 'egress entries that can never be reached');
    }
    return { rules, intercept };
  }

  async #take(vmId: string, options: TakeOptions): Promise<Slot> {
    const { pool, firewall, netd } = this.#parts;
    const known = pool.adopt(vmId);
    if (known !== undefined && netd.serves(vmId)) return await pool.take(vmId, options);
    const policy = this.#policy(vmId, options);
    const slot = await pool.take(vmId, options);
    try {
      await firewall.addPolicy(slot.index, policy);
    } catch (error) {
      await pool.release(vmId);
      throw error;
    }
    netd.put(vmId, slot.hostAddress, policy.rules);
    return slot;
  }

  /**
   * Placeholders of this sandbox, which has a network, are replaced in connections to these domains from now on.
   * @param env with its placeholders
   */
  replaceSecrets(vmId: string, domains: readonly string[], env: Record<string, string>): void {
    const { netd, interceptor } = this.#parts;
    netd.intercept(vmId, domains);
    interceptor?.put(vmId, env);
  }

  /**
   * Serves the mounted object stores of a sandbox, which has a network.
   * @returns whether they are served: if not, control does not answer, and they are served as soon as it does
   */
  async serveStores(vmId: string): Promise<boolean> {
    const { pool, stores } = this.#parts;
    const slot = pool.adopt(vmId);
    if (slot === undefined || stores === undefined) return false;
    await stores.put(vmId, slot.hostAddress);
    return await stores.ready(vmId, STORES_READY_MS);
  }

  /** The process that replaces placeholders; undefined while there is none. */
  async interceptorPid(): Promise<number | undefined> {
    return await this.#parts.interceptor?.pid();
  }

  /** The network that a sandbox has, from this run or an earlier one. */
  adopt(vmId: string): Slot | undefined {
    return this.#parts.pool.adopt(vmId);
  }

  /**
   * Publishes the declared ports of a sandbox that has a network. Repeating it changes nothing. `previous` is the
   * mapping of an earlier run; the same host ports are used when they are still free.
   */
  async forward(
    vmId: string,
    ports: readonly DeclaredPort[],
    previous?: readonly PortMapping[],
  ): Promise<PortMapping[]> {
    return await this.#parts.netd.forward(vmId, ports, previous);
  }

  /** Host end of a sandbox's interface; undefined when it has no network. */
  interfaceOf(vmId: string): string | undefined {
    const slot = this.adopt(vmId);
    return slot === undefined ? undefined : slotPlan(this.#parts.plan, slot.index).veth;
  }

  /** What the sandbox was not allowed to send, newest first; undefined when it has no network and nothing was stored. */
  async denied(vmId: string): Promise<EgressDenial[] | undefined> {
    return await this.#parts.denied.read(vmId, this.adopt(vmId));
  }

  /** Stores what the sandbox was denied, before its network is released. */
  async keepDenied(vmId: string): Promise<void> {
    const slot = this.adopt(vmId);
    try {
      if (slot !== undefined) await this.#parts.denied.keep(vmId, slot);
    } catch (err) {
      this.#log.warn({ err, vm_id: vmId }, 'denied connections are forgotten');
    }
  }

  /** Takes a sandbox's network away; its VMM must have ended. Repeating it does nothing. */
  async release(vmId: string): Promise<void> {
    const { pool, firewall, netd, denied, interceptor, stores } = this.#parts;
    this.#options.onRelease?.(vmId);
    interceptor?.remove(vmId);
    await stores?.remove(vmId);
    await netd.remove(vmId);
    await pool.release(vmId, async ({ index }) => {
      // Last of all: were the VMM still alive against our word, its policy would not have been lifted.
      await firewall.removePolicy(index);
      firewall.forgetDenials(index);
      denied.forget(vmId);
    });
    this.#options.onRelease?.(vmId);
  }

  /** Releases the networks of all sandboxes that are not in `keep`. */
  async reclaim(keep: ReadonlySet<string>): Promise<void> {
    const orphans = [...this.#parts.pool.holders()].filter((holder) => !keep.has(holder.vmId));
    for (const { vmId, slot } of orphans) {
      this.#log.info({ vm_id: vmId, slot: slot.index }, 'reclaiming a network that no sandbox claims');
      await this.release(vmId);
    }
  }

  /** This process ends, the sandboxes live on: leaves everything for the next `open`, with netd that continues to serve. */
  async detach(): Promise<void> {
    await this.#detach();
    this.#parts.hostd.close();
  }

  /**
   * The start of the service has failed: removes all of it, unless sandboxes of an earlier runner have networks.
   * @returns whether they have
   */
  async abandon(): Promise<boolean> {
    const { isUnused } = this.#parts.pool;
    await (isUnused ? this.close() : this.detach());
    return !isUnused;
  }

  async #detach(): Promise<void> {
    const { pool, firewall, netd, interceptor, stores, nameServers } = this.#parts;
    nameServers.close();
    firewall.detach();
    this.#detached ??= Promise.all([netd.detach(), pool.detach(), interceptor?.detach(), stores?.detach()]);
    await this.#detached;
  }

  /** The service ends: removes all of it from the machine. */
  async close(): Promise<void> {
    const { plan, pool, firewall, netd, hostd, cgroups, interceptFolder } = this.#parts;
    await this.#detach();
    await netd.stop();
    await this.#parts.interceptor?.stop();
    await this.#parts.stores?.stop();
    await cgroups.close();
    await rm(interceptFolder, { recursive: true, force: true });
    await pool.close();
    hostd.close();
    await firewall.remove();
    await removePolicyRouting(plan);
    await removeBridge(plan);
    await restoreForwarding(this.#options.runDir ?? DEFAULT_RUN_DIR);
  }
}

/** What netd, the interceptor and the store proxy get of a busy machine. */
const HELPERS_CORES = 1;
const DEFAULT_RUN_DIR = '/run/releap';
/** How long a start waits until control has told of object stores. */
const STORES_READY_MS = 10_000;
const DEFAULT_AHEAD = 8;
const DEFAULT_WATCH_MS = 10_000;

async function warnOfOthers(plan: AddressPlan, log: Logger): Promise<void> {
  const chains = await findDroppingChains(plan.table);
  if (chains.length === 0) return;
  log.warn(
    { chains, interfaces: `${vethPrefix(plan.tag)}+` },
    'other firewall chains drop by default and may cut sandboxes off from the internet or from name resolution; see docs/network.md',
  );
}
