/** The runners that are connected to this server: stores their reports and sends their assignments. */
import {
  RUNNER_PROTOCOL,
  LINK_CLOSE,
  REVERSE_CAPABILITY,
  type CpuReading,
  type Report,
  type UsageHistoryMessage,
  USAGE_HISTORY_CAPABILITY,
} from '@releap/contract/runner';
import { REVERSE_URL } from '@releap/certificates/hosts';
import { queryAll, queryOne, isForeignKeyViolation, type Database, type Queryable } from '@releap/database';
import type { Logger } from 'pino';
import type { RunnerCredentials } from '../../platform/credentials/runner-credentials.ts';
import { ASSIGNMENTS_BY_ID_MAX, type ReconciledKind } from '../../platform/reconciled-kind.ts';
import { warnOfUnknownClasses } from '../classes/host-classes.ts';
import { Link, type IgnoredCounts, type LinkHandlers } from './link.ts';
import type { UpgradeRouter } from '../../platform/http/upgrade-router.ts';
import { createLinkServer } from './link-server.ts';
import * as queries from './queries.ts';
import { retryOnDatabaseError } from './retry.ts';

/** A resource whose assignment may have changed. */
export interface ChangedResource {
  id: string;
  /** The runner that it is assigned to, if any. */
  runner_id: string | null;
  /** Newest generation; absent when it is not known. */
  generation?: number;
  /** False when the runner no longer holds it. */
  assigned_to_runner: boolean;
}

/** A change that another server has announced. */
export interface RemoteChange {
  id: string;
  /** The runner that the resource is assigned to, if any. */
  runner_id: string | null;
  generation: number;
  kind?: string | undefined;
}

export interface RunnerRegistry {
  /** Sends changed assignments to the runners that are connected here. @param kind name of the kind */
  changed(kind: string, resources: readonly ChangedResource[]): void;
  /** The same for changes by another server. An older one does not send the kind. */
  changedElsewhere(resources: readonly RemoteChange[]): void;
  /**
   * Sends missed assignments to the runners that are connected here. Other servers announce each change once: without
   * this a runner would never receive changes that were announced while the database was unreachable.
   */
  resync(): Promise<void>;
  isConnected(runnerId: string): boolean;
  /** Has a runner that accepts no connections open some to this address. @returns whether it is connected here */
  dial(runnerId: string, address: string): boolean;
  /** Runners after their hello, in no order. */
  links(): Link[];
  /** Counts of received and ignored items, since the start. */
  readonly ignored: Readonly<IgnoredCounts>;
  /** Sets the reconciled kinds, in the order in which they are sent. Call it before `attach`. */
  reconcile(kinds: readonly ReconciledKind[]): void;
  /** Accepts the links of runners on this server. */
  attach(upgrades: UpgradeRouter): void;
  /** Records that the connected runners are alive, and closes the links of those that are silent. */
  heartbeat(on?: Queryable): Promise<void>;
  /** Marks silent runners lost, with their resources. */
  markSilentRunnersLost(afterMs: number): Promise<void>;
  close(): Promise<void>;
}

export interface RegistryOptions {
  database: Database;
  serverId: string;
  deploymentId: string;
  credentials: RunnerCredentials;
  limits: { linkSilentMs: number };
  log: Logger;
  /** A runner has become ready. */
  onReady: (link: Link) => void;
  onUsage: (runnerId: string, readings: readonly CpuReading[]) => void;
  /** The records of use; with mode `off` runners need not send any. */
  /** Stores records of use; false: it could not, and the runner sends them again. */
  usage: {
    readonly settings: { readonly mode: 'on' | 'off' };
    store(runnerId: string, message: Pick<UsageHistoryMessage, 'seq' | 'pieces'>): Promise<boolean>;
  };
}

/** Rows of a page of generations. */
const RESYNC_PAGE = 5_000;
const LOWEST_ID = '00000000-0000-0000-0000-000000000000';

export function createRegistry(options: RegistryOptions): RunnerRegistry {
  const { database, log } = options;
  let kinds: readonly ReconciledKind[] = [];
  const byName = new Map<string, ReconciledKind>();
  const links = new Map<string, Link>();
  const opened = new Set<Link>();
  /** Links of which the last pass had heard nothing. */
  let silent = new Set<Link>();
  const ignored: IgnoredCounts = { messageTypes: 0, messages: 0, items: 0 };
  /** Settles when the heartbeats are stored that were sent last. */
  let beating: Promise<unknown> = Promise.resolve();

  const handlers: LinkHandlers = {
    get kinds() {
      return kinds;
    },

    async hello(link, hello) {
      const { deploymentId } = options;
      if (hello.deployment_id !== undefined && hello.deployment_id !== deploymentId) {
        link.close(
          LINK_CLOSE.otherDeployment,
          `the runner belongs to deployment ${hello.deployment_id}, this is ${deploymentId}`,
        );
        return undefined;
      }
      const row = await queryOne(database.pool, queries.RUNNER_HELLO, [
        hello.runner_id,
        hello.region,
        hello.capabilities.includes(REVERSE_CAPABILITY) ? REVERSE_URL : hello.data_url,
        JSON.stringify(hello.facts),
        options.serverId,
        hello.kinds,
        hello.capabilities,
      ]).catch((error: unknown) => {
        if (!isForeignKeyViolation(error)) throw error;
        link.close(LINK_CLOSE.refused, `unknown region ${JSON.stringify(hello.region).slice(0, 60)}`);
        return undefined;
      });
      if (row === undefined) {
        link.close(LINK_CLOSE.refused, 'the operator has forgotten this host');
        return undefined;
      }
      // Only the newest connection of a runner is valid; an older one may be half-open.
      links.get(hello.runner_id)?.close(LINK_CLOSE.replaced, 'the runner has reconnected');
      if (!link.closed) links.set(hello.runner_id, link);
      await warnOfUnknownClasses(database.pool, log, hello.runner_id, hello.facts);
      const { capabilities, kinds: reconciles, protocol } = hello;
      log.info(
        { runner: hello.runner_id, region: hello.region, protocol, capabilities, kinds: reconciles },
        'a runner has connected',
      );
      return {
        epoch: row.epoch,
        welcome: {
          type: 'welcome',
          protocol: Math.min(protocol, RUNNER_PROTOCOL),
          deployment_id: deploymentId,
          capabilities: options.usage.settings.mode === 'on' ? [USAGE_HISTORY_CAPABILITY] : [],
          kinds: [...byName.keys()],
        },
      };
    },

    async report(link, items) {
      for (const [name, reports] of Map.groupBy(items, (item): string => item.kind))
        await observe(link, name, reports);
    },

    usage(link, { readings }) {
      options.onUsage(link.runnerId, readings);
    },

    async usageHistory(link, message) {
      return await options.usage.store(link.runnerId, message);
    },

    async ready(link, ready) {
      // Heartbeats that wait for a row of another host have the earlier value, and would be stored after this one.
      await beating;
      await queryAll(database.pool, queries.RUNNER_READY, [link.runnerId, link.epoch, ready]);
      log.info({ runner: link.runnerId, ready }, ready ? 'a runner is ready' : 'a runner is not ready');
      if (ready) options.onReady(link);
    },

    ignored(what, count) {
      ignored[what] += count;
    },

    closed(link) {
      opened.delete(link);
      if (links.get(link.runnerId) === link) links.delete(link.runnerId);
      if (link.runnerId !== '') log.info({ runner: link.runnerId }, 'a runner has disconnected');
    },

    ended(link) {
      if (link.epoch === '0') return;
      queryAll(database.pool, queries.RUNNER_OFFLINE, [link.runnerId, link.epoch]).catch((error: unknown) =>
        log.warn({ err: error, runner: link.runnerId }, 'could not record that a runner is offline'),
      );
    },
  };

  async function observe(link: Link, name: string, reports: readonly Report[]): Promise<void> {
    const kind = byName.get(name);
    if (kind === undefined) return;
    for (const { id, status, detail } of reports) {
      if (status === 'unsupported')
        log.warn({ runner: link.runnerId, kind: name, id, error: detail.error }, 'a runner cannot do this');
    }
    await retryOnDatabaseError(() => kind.observe(link.runnerId, reports));
  }

  /** Ids are unique over all kinds: a resource is of the kind that finds it. */
  function findAndSend(link: Link, ids: readonly string[]): void {
    const find = async (): Promise<void> => {
      for (const kind of kinds) {
        for (let at = 0; at < ids.length; at += ASSIGNMENTS_BY_ID_MAX) {
          const some = ids.slice(at, at + ASSIGNMENTS_BY_ID_MAX);
          for (const { id, generation } of await kind.assignmentsById(link.runnerId, some))
            link.changed(kind, id, generation);
        }
      }
    };
    find().catch((error: unknown) =>
      log.error({ err: error, runner: link.runnerId }, 'changes were not sent'),
    );
  }

  const welcomed = (): Link[] => [...links.values()].filter((link) => link.epoch !== '0');

  const server = createLinkServer({
    credentials: options.credentials,
    onLink: (socket, runnerId) => opened.add(new Link(socket, runnerId, handlers, log)),
  });

  return {
    ignored,
    changed(name, resources) {
      const kind = byName.get(name);
      if (kind === undefined) throw new Error(`no kind ${name} is registered`);
      for (const { id, runner_id, generation, assigned_to_runner } of resources) {
        const link = runner_id === null ? undefined : links.get(runner_id);
        if (assigned_to_runner) link?.changed(kind, id, generation);
        else link?.released(id);
      }
    },
    changedElsewhere(resources) {
      for (const [runnerId, changes] of Map.groupBy(resources, (one) => one.runner_id)) {
        const link = runnerId === null ? undefined : links.get(runnerId);
        if (link === undefined) continue;
        const unknown: string[] = [];
        for (const { id, generation, kind: name } of changes) {
          const kind = name === undefined ? undefined : byName.get(name);
          if (kind !== undefined) link.changed(kind, id, generation);
          else if (name === undefined) unknown.push(id);
        }
        if (unknown.length > 0) findAndSend(link, unknown);
      }
    },
    async resync() {
      const live = welcomed().map((link) => link.runnerId);
      if (live.length === 0) return;
      for (const kind of kinds) {
        for (let after = LOWEST_ID; ; ) {
          const page = await kind.generations(live, after, RESYNC_PAGE);
          for (const { id, runner_id, generation } of page)
            links.get(runner_id)?.changed(kind, id, generation);
          const last = page.at(-1);
          if (last === undefined || page.length < RESYNC_PAGE) break;
          after = last.id;
        }
      }
    },
    isConnected: (runnerId) => links.has(runnerId),
    dial(runnerId, address) {
      const link = links.get(runnerId);
      if (link?.capabilities.has(REVERSE_CAPABILITY) === true) link.dial(address);
      return link !== undefined;
    },
    links: welcomed,
    reconcile(those) {
      kinds = those;
      for (const kind of those) byName.set(kind.kind, kind);
    },
    attach: (upgrades) => server.attach(upgrades),
    async heartbeat(on = database.pool) {
      const silentSince = performance.now() - options.limits.linkSilentMs;
      const before = silent;
      silent = new Set([...opened].filter((link) => link.lastHeard < silentSince));
      // Twice in a row: after a pause of this process, or of the machine, messages are still to be read, or to be sent.
      for (const link of silent) {
        if (before.has(link)) link.close(LINK_CLOSE.silent, 'nothing was received from the runner');
      }
      const live = welcomed();
      if (live.length === 0) return;
      const stored = queryAll(on, queries.RUNNERS_SEEN, [
        live.map((link) => link.runnerId),
        live.map((link) => link.epoch),
        live.map((link) => link.ready),
        live.map(({ heldMemory }) => heldMemory.mem_mib),
        live.map(({ heldMemory }) => heldMemory.reclaimable_mib),
        live.map(({ freeDiskMib }) => freeDiskMib),
      ]);
      beating = stored.catch(() => undefined);
      const counted = await stored;
      const known = new Set(counted.map((row) => row.id));
      for (const link of live) {
        if (!known.has(link.runnerId))
          link.close(LINK_CLOSE.replaced, 'the runner has connected to another server');
      }
    },
    async markSilentRunnersLost(afterMs) {
      const lost = await queryAll(database.pool, queries.RUNNERS_LOST, [afterMs]);
      if (lost.length > 0) log.warn({ runners: lost.map((row) => row.id) }, 'runners are lost');
      // Also finishes what a stopped server has left.
      for (const kind of kinds) await kind.runnersLost?.(afterMs);
    },
    async close() {
      for (const link of opened) link.close(1001, 'the control plane is stopping');
      await server.close();
    },
  };
}
