/** The runners that are connected to this server: what they say goes into the database, what is decided goes to them. */
import type { Server } from 'node:http';
import type { Duplex } from 'node:stream';
import { timingSafeEqual } from 'node:crypto';
import {
  bearerToken,
  LINK_MESSAGE_MAX_BYTES,
  RUNNER_LINK_PATH,
  tokenDigest,
  type CpuReading,
  type Observation,
  type SandboxStatus,
  type SnapshotObservation,
} from '@releap/contract';
import { all, first, type Database, type Queryable } from '@releap/database';
import type { Logger } from 'pino';
import { WebSocketServer } from 'ws';
import type { ControlLimits } from '../limits.ts';
import type { PullCredentials } from '../registries/pull-credentials.ts';
import {
  assignable,
  needsEnvironment,
  withEnvironments,
  type AssignableRow,
} from '../sandboxes/environment.ts';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import type { SandboxRow } from '@releap/database';
import type { Change } from '../sandboxes/transition-sql.ts';
import { OCCUPIES_CPU, type ObserveEvent } from '../sandboxes/transitions.ts';
import type { Snapshots } from '../snapshots/snapshots.ts';
import type { SnapshotRow } from '@releap/database';
import type { SnapshotChange } from '../snapshots/transition-sql.ts';
import { CLOSE, Link, type LinkEvents } from './link.ts';
import { readReason } from './messages.ts';
import * as queries from './queries.ts';

export interface RunnerRegistry {
  /** Tells the runners that are connected here what is to be of these sandboxes. */
  push(rows: readonly SandboxRow[]): void;
  pushSnapshots(rows: readonly SnapshotRow[]): void;
  /** Reads these sandboxes and snapshots and tells the runner, if it is connected here. For changes made by another server. */
  pushById(runnerId: string, ids: readonly string[]): Promise<void>;
  /**
   * Tells the runners that are connected here what they have not been told yet. Other servers say what they have changed,
   * but nobody says it twice: without this a runner would never hear of what was said while the database was away.
   */
  catchUp(): Promise<void>;
  isConnected(runnerId: string): boolean;
  /** Connected and synced, in no order. */
  links(): Link[];
  /** Accepts the links of runners on this server. */
  attach(server: Server): void;
  /** Records that the connected runners are alive, and closes the links of those that are silent. */
  heartbeat(on?: Queryable): Promise<void>;
  /** Runners silent for too long become lost, and what ran there with them. */
  loseSilent(afterMs: number): Promise<void>;
  close(): Promise<void>;
}

export interface RegistryOptions {
  database: Database;
  serverId: string;
  internalToken: string;
  lifecycle: Lifecycle;
  credentials: PullCredentials;
  snapshots: Snapshots;
  limits: ControlLimits;
  log: Logger;
  /** Room may have come: a runner is ready, or something left it. */
  onCapacityReleased: () => void;
  onReady: (link: Link) => void;
  onUsage: (runnerId: string, readings: readonly CpuReading[]) => void;
  onBuildResult: LinkEvents['buildResult'];
  onBuildsAbandoned: (link: Link) => void;
}

/** How many sandboxes one statement moves. */
const BATCH = 500;
const RETRIES = [100, 400, 1_000];

export function createRegistry(options: RegistryOptions): RunnerRegistry {
  const { database, lifecycle, credentials, log } = options;
  const links = new Map<string, Link>();
  const opened = new Set<Link>();
  const expected = tokenDigest(options.internalToken);

  const events: LinkEvents = {
    async hello(link, hello) {
      const row = await first(database.pool, queries.RUNNER_HELLO, [
        hello.runner_id,
        hello.region,
        hello.data_url,
        JSON.stringify(hello.facts),
        options.serverId,
      ]).catch((error: unknown) => {
        if ((error as { code?: string }).code !== '23503') throw error;
        link.close(CLOSE.refused, `unknown region ${JSON.stringify(hello.region).slice(0, 60)}`);
        return undefined;
      });
      if (row === undefined) return { epoch: '0', held: [], snapshots: [] };
      // The newest connection of a runner wins; a half-open older one must not speak for it any more.
      links.get(hello.runner_id)?.close(CLOSE.replaced, 'the runner has connected again');
      if (!link.closed) links.set(hello.runner_id, link);
      const held = await all(database.pool, queries.SANDBOXES_HELD, [hello.runner_id]);
      const snapshots = await all(database.pool, queries.SNAPSHOTS_HELD, [hello.runner_id]);
      log.info(
        { runner: hello.runner_id, region: hello.region, holds: held.length, snapshots: snapshots.length },
        'a runner has connected',
      );
      return {
        epoch: row.epoch,
        held: await credentials.unlock(await withEnvironments(database.pool, held)),
        snapshots,
      };
    },

    async observe(link, { observations }) {
      for (const [trigger, changes] of inOrder(link.runnerId, observations)) {
        const moved = await retrying(() => lifecycle.apply(trigger, changes));
        if (moved.some((row) => !row.assigned_to_runner || !occupies(row.status)))
          options.onCapacityReleased();
      }
    },

    async observeSnapshots(link, { observations }) {
      for (const observation of observations) {
        await retrying(() =>
          options.snapshots.apply(`observe:${observation.status}`, [
            toSnapshotChange(link.runnerId, observation),
          ]),
        );
      }
    },

    buildResult: options.onBuildResult,

    usage(link, { readings }) {
      options.onUsage(link.runnerId, readings);
    },

    async ready(link, ready) {
      await all(database.pool, queries.RUNNER_READY, [link.runnerId, link.epoch, ready]);
      log.info(
        { runner: link.runnerId, ready },
        ready ? 'a runner is ready' : 'a runner is not ready any more',
      );
      if (!ready) return;
      options.onReady(link);
      options.onCapacityReleased();
    },

    closed(link) {
      opened.delete(link);
      if (links.get(link.runnerId) === link) links.delete(link.runnerId);
      if (link.runnerId === '') return;
      log.info({ runner: link.runnerId }, 'a runner has disconnected');
      options.onBuildsAbandoned(link);
    },

    ended(link) {
      if (link.epoch === '0') return;
      all(database.pool, queries.RUNNER_OFFLINE, [link.runnerId, link.epoch]).catch((error: unknown) =>
        log.warn({ err: error, runner: link.runnerId }, 'could not write down that a runner is offline'),
      );
    },
  };

  const tell = (row: AssignableRow): void => {
    if (row.runner_id !== null) links.get(row.runner_id)?.assign(row);
  };

  /** Generations of what is being unlocked; out of it goes what something newer has overtaken. */
  const unlocking = new Set<Map<string, number>>();

  /** What pulls with a credential, or has an environment, is told a moment later than the rest, and never after something newer. */
  async function unlockAndTell(rows: readonly SandboxRow[]): Promise<void> {
    const batch = new Map(rows.map((row) => [row.id, row.generation]));
    unlocking.add(batch);
    try {
      const unlocked = await retrying(async () =>
        credentials.unlock(await withEnvironments(database.pool, rows)),
      );
      for (const row of unlocked) if (batch.has(row.id)) tell(row);
    } catch (error) {
      log.error({ err: error }, 'credentials could not be read; the runners connect again and are told then');
      for (const { runner_id } of rows)
        links.get(runner_id ?? '')?.close(CLOSE.failed, 'an assignment could not be completed');
    } finally {
      unlocking.delete(batch);
    }
  }

  function push(rows: readonly SandboxRow[]): void {
    const locked: SandboxRow[] = [];
    for (const row of rows) {
      if (row.runner_id === null || !links.has(row.runner_id)) continue;
      for (const batch of unlocking) {
        if (!row.assigned_to_runner || (batch.get(row.id) ?? Infinity) < row.generation) batch.delete(row.id);
      }
      const whole = assignable(row);
      if (row.assigned_to_runner && (needsEnvironment(row) || credentials.wanted(whole))) locked.push(row);
      else tell(whole);
    }
    if (locked.length > 0) void unlockAndTell(locked);
  }

  async function pushById(runnerId: string, ids: readonly string[]): Promise<void> {
    const link = links.get(runnerId);
    if (link === undefined) return;
    push(await all(database.pool, queries.SANDBOXES_TO_PUSH, [ids, runnerId]));
    for (const row of await all(database.pool, queries.SNAPSHOTS_TO_PUSH, [ids, runnerId]))
      link.assignSnapshot(row);
  }

  const synced = (): Link[] => [...links.values()].filter((link) => link.epoch !== '0');

  const sockets = new WebSocketServer({
    noServer: true,
    maxPayload: LINK_MESSAGE_MAX_BYTES,
    perMessageDeflate: false,
  });
  const onUpgrade = (
    request: Parameters<typeof sockets.handleUpgrade>[0],
    socket: Duplex,
    head: Buffer,
  ): void => {
    socket.on('error', (error) => log.debug({ err: error }, 'an upgrading connection broke'));
    const path = (request.url ?? '').split('?', 1)[0];
    const token = bearerToken(request.headers.authorization);
    if (path !== RUNNER_LINK_PATH)
      return refuse(socket, '404 Not Found', `no such route: ${path?.slice(0, 100)}`);
    if (token === null || !timingSafeEqual(tokenDigest(token), expected)) {
      return refuse(socket, '401 Unauthorized', 'missing or invalid runner token');
    }
    sockets.handleUpgrade(request, socket, head, (ws) => opened.add(new Link(ws, events, log)));
  };
  const attached = new Set<Server>();

  return {
    push,
    pushSnapshots(rows) {
      for (const row of rows) links.get(row.runner_id)?.assignSnapshot(row);
    },
    pushById,
    async catchUp() {
      const live = synced();
      if (live.length === 0) return;
      const held = await all(database.pool, queries.GENERATIONS_HELD, [live.map((link) => link.runnerId)]);
      const untold = held.filter(
        (row) => (links.get(row.runner_id)?.sent.get(row.id) ?? -1) < row.generation,
      );
      for (const [runnerId, rows] of Map.groupBy(untold, (row) => row.runner_id)) {
        const ids = rows.map((row) => row.id);
        for (let at = 0; at < ids.length; at += BATCH) await pushById(runnerId, ids.slice(at, at + BATCH));
      }
    },
    isConnected: (runnerId) => links.has(runnerId),
    links: () => [...links.values()],
    attach(server) {
      attached.add(server);
      server.on('upgrade', onUpgrade);
    },
    async heartbeat(on = database.pool) {
      const silentSince = performance.now() - options.limits.linkSilentMs;
      for (const link of opened) {
        if (link.lastHeard < silentSince) link.close(CLOSE.silent, 'nothing was heard from the runner');
      }
      const live = synced();
      if (live.length === 0) return;
      const counted = await all(on, queries.RUNNERS_SEEN, [
        live.map((link) => link.runnerId),
        live.map((link) => link.epoch),
        live.map((link) => link.ready),
      ]);
      const known = new Set(counted.map((row) => row.id));
      for (const link of live) {
        if (!known.has(link.runnerId))
          link.close(CLOSE.replaced, 'the runner has connected to another server');
      }
    },
    async loseSilent(afterMs) {
      const moved = await database.transaction(async (client) => {
        const lost = await all(client, queries.RUNNERS_LOST, [afterMs]);
        if (lost.length === 0) return [];
        log.warn({ runners: lost.map((row) => row.id) }, 'runners are lost');
        const held = await all(client, queries.SANDBOXES_ON, [lost.map((row) => row.id)]);
        const rows: SandboxRow[] = [];
        for (let at = 0; at < held.length; at += BATCH) {
          rows.push(
            ...(await lifecycle.applyWithin(
              client,
              'runner-lost',
              held.slice(at, at + BATCH).map(({ id, runner_id }) => ({
                id,
                runner_id,
                error: `its host ${runner_id} has not been heard from for ${Math.round(afterMs / 1000)} s`,
              })),
            )),
          );
        }
        return rows;
      });
      if (moved.length > 0) lifecycle.announce(moved);
    },
    async close() {
      for (const server of attached) server.off('upgrade', onUpgrade);
      for (const link of opened) link.close(1001, 'the control plane is stopping');
      await new Promise<void>((resolve) => sockets.close(() => resolve()));
    },
  };
}

const occupies = (status: SandboxStatus): boolean => (OCCUPIES_CPU as readonly string[]).includes(status);

/** Batches of one trigger each that keep the order of what was observed of each sandbox. */
function* inOrder(
  runnerId: string,
  observations: readonly Observation[],
): Iterable<[ObserveEvent, Change[]]> {
  let batch = new Map<ObserveEvent, Change[]>();
  let seen = new Set<string>();
  let size = 0;
  for (const observation of observations) {
    if (seen.has(observation.vm_id) || size >= BATCH) {
      yield* batch;
      batch = new Map();
      seen = new Set();
      size = 0;
    }
    seen.add(observation.vm_id);
    size++;
    const trigger: ObserveEvent = `observe:${observation.status}`;
    const changes = batch.get(trigger) ?? [];
    batch.set(trigger, changes);
    changes.push(toChange(runnerId, observation));
  }
  yield* batch;
}

function toChange(runnerId: string, observation: Observation): Change {
  const error = readReason(observation.error);
  return {
    id: observation.vm_id,
    generation: observation.generation,
    runner_id: runnerId,
    ...(error === undefined ? {} : { error }),
    ...(observation.vm_ip === undefined ? {} : { vm_ip: observation.vm_ip }),
    ...(observation.host_ip === undefined ? {} : { host_ip: observation.host_ip }),
    ...(observation.port_map === undefined ? {} : { port_map: observation.port_map }),
    ...(observation.manifest_name === undefined ? {} : { manifest_name: observation.manifest_name }),
    ...(observation.memory === undefined ? {} : { memory: observation.memory }),
  };
}

function toSnapshotChange(runnerId: string, observation: SnapshotObservation): SnapshotChange {
  const { snapshot_id: id, status: _status, error, ...told } = observation;
  const reason = readReason(error);
  return { ...told, id, runner_id: runnerId, ...(reason === undefined ? {} : { error: reason }) };
}

/** A hiccup of the database is waited out; what lasts longer closes the link, and the runner repeats itself. */
async function retrying<T>(work: () => Promise<T>): Promise<T> {
  for (const pause of RETRIES) {
    try {
      return await work();
    } catch {
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
  return work();
}

function refuse(socket: Duplex, status: string, error: string): void {
  const body = JSON.stringify({ error });
  socket.end(
    `HTTP/1.1 ${status}\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  );
}
