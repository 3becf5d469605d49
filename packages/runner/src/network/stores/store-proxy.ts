import { mkdir, readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { RunnerStores } from '@releap/contract';
import {
  type RunnerToStoreProxy,
  STORES_LINE_MAX_BYTES,
  STORES_PROTOCOL,
  STORES_REPLY_MAX_BYTES,
  StoreProxyToRunner,
} from '@releap/contract/netd';
import type { Logger } from 'pino';
import type { HelperConnection, HelperProtocol } from '../netd/helper-connection.ts';
import type { CgroupTree } from '../../cgroup/cgroup-tree.ts';
import { HelperProcess } from '../netd/helper-process.ts';
import { HelperSupervisor } from '../netd/helper-supervisor.ts';
import { type Polled, RevisionPoll } from '../netd/revision-poll.ts';

const STORE_PROXY: HelperProtocol<RunnerToStoreProxy, typeof StoreProxyToRunner> = {
  name: 'the store proxy',
  version: STORES_PROTOCOL,
  received: StoreProxyToRunner,
  receivedMaxBytes: STORES_REPLY_MAX_BYTES,
  waitingMaxBytes: 4 * STORES_LINE_MAX_BYTES,
};
type Connection = HelperConnection<RunnerToStoreProxy, typeof StoreProxyToRunner>;

export interface StoreProxyOptions {
  /** A folder of its own. */
  dir: string;
  cgroups: CgroupTree;
  /** The user that it becomes. */
  uid: number;
  /** Address of the host at which it listens for guests. */
  address: string;
  /** The mounted stores of those of these sandboxes that have other ones than the revision says. */
  changed: (sandboxes: readonly { id: string; revision?: string }[]) => Promise<RunnerStores>;
  /** Endpoints that are allowed besides those at public addresses; see `AddressPolicy`. */
  privateHosts: readonly string[];
  /** Certificates of authorities, PEM, that endpoints may be verified with besides those of the host. */
  extraCa?: string | undefined;
  /** Requests of guests are to be led to this port. */
  onPort: (port: number) => Promise<void>;
  log: Logger;
}

/** How often a start looks whether the proxy has connected again. */
const READY_POLL_MS = 1_000;

interface Sandbox extends Polled {
  address: string;
  /** It has none, so it is not asked for again. */
  isEmpty?: boolean;
}

/**
 * The runner's side of the store proxy: runs one as soon as there is a sandbox with a mounted object store, and gives it the stores
 * with their credentials, which it keeps nowhere itself. After a restart of either they are asked for again.
 */
export class StoreProxy {
  readonly #options: StoreProxyOptions;
  readonly #helper: HelperSupervisor<RunnerToStoreProxy, typeof StoreProxyToRunner>;
  readonly #sandboxes = new Map<string, Sandbox>();
  readonly #poll: RevisionPoll<Sandbox, RunnerStores['sandboxes'][number], Connection>;
  readonly #known = new Set<() => void>();
  /** Has a file for each sandbox with mounts. */
  readonly #served: string;
  #port: Promise<void> = Promise.resolve();

  constructor(options: StoreProxyOptions) {
    this.#options = options;
    this.#served = join(options.dir, 'served');
    const { dir, uid, address, changed, onPort, log } = options;
    this.#poll = new RevisionPoll({
      sandboxes: this.#sandboxes,
      changed,
      isAsked: ({ isEmpty }) => isEmpty !== true,
      put: async (connection, sandbox, { id, stores }) => {
        await connection.request({ type: 'put', vm_id: id, address: sandbox.address, stores });
        sandbox.isEmpty = stores.length === 0;
      },
      onUpdated: () => {
        for (const tell of this.#known) tell();
      },
      subject: 'object stores',
      log,
    });
    this.#helper = new HelperSupervisor({
      process: new HelperProcess(
        dir,
        { name: 'stores', file: 'src/stores/main.ts', args: [String(uid), address] },
        options.cgroups,
      ),
      protocol: STORE_PROXY,
      serve: (connection) => this.#serve(connection),
      onHello: ({ port }) => {
        this.#port = onPort(port);
        this.#port.catch((err: unknown) =>
          log.error({ err }, 'requests of mounted object stores cannot be led to their proxy'),
        );
      },
      onRequest: () => undefined,
      log,
    });
  }

  /** How often it has ended by itself, or hung and was ended. */
  get ends(): number {
    return this.#helper.ends;
  }

  /** Serves sandboxes that an earlier runner served: a mount that was added as they ran is in no assignment. */
  async recover(sandboxes: Iterable<{ vmId: string; address: string }>): Promise<void> {
    const served = new Set(await readdir(this.#served).catch(() => []));
    for (const { vmId, address } of sandboxes) if (served.delete(vmId)) this.#put(vmId, address);
    for (const vmId of served) await rm(join(this.#served, vmId), { force: true });
  }

  /** This sandbox has mounts: its stores are asked for, also by a runner after this one. */
  async put(vmId: string, address: string): Promise<void> {
    await mkdir(this.#served, { recursive: true, mode: 0o700 });
    await writeFile(join(this.#served, vmId), '');
    this.#put(vmId, address);
  }

  #put(vmId: string, address: string): void {
    this.#sandboxes.set(vmId, { address });
    this.#helper.start();
    this.#poll.wake();
  }

  /** Resolves when the proxy has what control knows of the stores of this sandbox, at the latest after this time. */
  async ready(vmId: string, deadlineMs: number): Promise<boolean> {
    const end = performance.now() + deadlineMs;
    while (performance.now() < end) {
      const sandbox = this.#sandboxes.get(vmId);
      if (sandbox === undefined) return false;
      if (sandbox.revision !== undefined && this.#helper.connection !== undefined) {
        await this.#port;
        return true;
      }
      const told = Promise.withResolvers<void>();
      this.#known.add(told.resolve);
      await Promise.race([told.promise, sleep(READY_POLL_MS, undefined, { ref: false })]);
      this.#known.delete(told.resolve);
    }
    return false;
  }

  /** Requests of this sandbox are refused from now on. */
  async remove(vmId: string): Promise<void> {
    if (!this.#sandboxes.delete(vmId)) return;
    await rm(join(this.#served, vmId), { force: true });
    this.#helper.connection?.tell({ type: 'remove', vm_id: vmId });
  }

  /** Its root has the files of the host that names are resolved by as they were when it started. */
  restart(): void {
    this.#helper.connection?.end('the host has other name servers');
  }

  /** The runner ends, the proxy continues. */
  async detach(): Promise<void> {
    await this.#helper.detach();
  }

  /** Ends the proxy. */
  async stop(): Promise<void> {
    await this.#helper.stop();
  }

  /** Gives a connected proxy what it needs, until it is lost. */
  async #serve(connection: Connection): Promise<void> {
    const { extraCa, privateHosts } = this.#options;
    connection.send({
      type: 'hello',
      protocol: STORES_PROTOCOL,
      private_hosts: [...privateHosts],
      ...(extraCa === undefined ? {} : { extra_ca: extraCa }),
    });
    await this.#poll.serve(connection);
  }
}
