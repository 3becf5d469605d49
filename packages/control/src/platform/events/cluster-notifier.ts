/**
 * Notifies the other control servers of changed sandboxes and snapshots, over LISTEN/NOTIFY. A single server sends
 * nothing. With several, notifications go out after the commit and in batches, because a NOTIFY inside the writing
 * transaction makes every writer wait for every other.
 */
import { isUuid } from '@releap/contract';
import { queryAll, listen, statement, type Database, type Listener, type Queryable } from '@releap/database';
import type { Logger } from 'pino';
import { createWriteQueue } from '../work/write-queue.ts';

const CHANNEL = 'releap_sandboxes';
/** Payloads of NOTIFY are limited to 8000 bytes; an entry is at most 160. */
const ENTRIES_PER_MESSAGE = 48;
/** A server without a heartbeat for this long is not notified any more. */
const PEER_GONE_MS = 20_000;

/**
 * A changed sandbox or snapshot: its id, the runner that it is assigned to, its generation, and its kind as on the
 * runners' link, which a server of the previous version does not send.
 */
export type Changed = readonly [id: string, runnerId: string | null, generation: number, kind?: string];

interface Message {
  from: string;
  hello?: true;
  changed?: Changed[];
}

export interface ClusterNotifier extends AsyncDisposable {
  publish(changed: readonly Changed[]): void;
  /** Records that this server is alive, and reads which others are. Call it every few seconds. */
  heartbeat(on?: Queryable): Promise<void>;
  /** Whether there may be other servers. */
  readonly hasPeers: boolean;
  close(): Promise<void>;
}

export interface ClusterNotifierOptions {
  database: Database;
  serverId: string;
  log: Logger;
  /** Changes by another server. */
  onChanged: (changed: Changed[]) => void;
  /** Notifications may have been missed, or another server has ended that may not have sent all of its own. */
  onGap: () => void;
}

const NOTIFY = statement('cluster-notify', `select pg_notify('${CHANNEL}', m) from unnest($1::text[]) as m`);
const HEARTBEAT = statement<{ id: string }>(
  'bridge-heartbeat',
  `with me as (
     insert into control_servers (id) values ($1) on conflict (id) do update set last_seen_at = now()
   ), gone as (
     delete from control_servers where last_seen_at < now() - interval '10 minutes'
   )
   select id from control_servers
    where id <> $1 and last_seen_at > now() - $2 * interval '1 millisecond'`,
);

export async function openClusterNotifier(options: ClusterNotifierOptions): Promise<ClusterNotifier> {
  const { database, serverId, log } = options;
  let peers: ReadonlySet<string> = new Set();
  let lastHeard = -Infinity;

  const hasPeers = (): boolean => peers.size > 0 || performance.now() - lastHeard < PEER_GONE_MS;

  const send = async (messages: Message[]): Promise<void> => {
    await queryAll(database.pool, NOTIFY, [messages.map((message) => JSON.stringify(message))]);
  };

  // Some may have been sent when it fails: those who hear of a change twice only look again.
  const queue = createWriteQueue<Changed>({
    async write(batch) {
      const messages: Message[] = [];
      for (let at = 0; at < batch.length; at += ENTRIES_PER_MESSAGE)
        messages.push({ from: serverId, changed: batch.slice(at, at + ENTRIES_PER_MESSAGE) });
      await send(messages);
    },
    batch: 50_000,
    most: 50_000,
    retryMs: 1_000,
    onError: (error, waiting) =>
      log.warn({ err: error, waiting }, 'other servers could not be notified of changes; retrying'),
  });

  const receive = (payload: string): void => {
    const message = parse(payload);
    if (message === undefined || message.from === serverId) return;
    lastHeard = performance.now();
    if (message.changed !== undefined) options.onChanged(message.changed);
  };

  const heartbeat = async (on: Queryable = database.pool): Promise<void> => {
    const before = peers;
    peers = new Set((await queryAll(on, HEARTBEAT, [serverId, PEER_GONE_MS])).map(({ id }) => id));
    // One that died may have committed changes that it did not announce.
    if ([...before].some((id) => !peers.has(id))) options.onGap();
  };

  const listener: Listener = await listen({
    url: database.url,
    channel: CHANNEL,
    log,
    onMessage: receive,
    onReconnect: options.onGap,
  });
  await heartbeat();
  // A server that had no peers until now learns at once that it has one.
  if (peers.size > 0) await send([{ from: serverId, hello: true }]);

  const close = async (): Promise<void> => {
    await queue.flush().catch(() => undefined);
    await queue.close();
    await listener.close();
    await database.pool
      .query('delete from control_servers where id = $1', [serverId])
      .catch((error: unknown) => log.debug({ err: error }, 'this server could not be removed from the list'));
  };
  return {
    get hasPeers() {
      return hasPeers();
    },
    publish(changed) {
      if (changed.length === 0 || !hasPeers()) return;
      const dropped = queue.add(changed);
      if (dropped > 0) log.warn({ dropped }, 'other servers are not notified of some changes: too many wait');
      queue.kick();
    },
    heartbeat,
    close,
    [Symbol.asyncDispose]: close,
  };
}

function parse(payload: string): Message | undefined {
  try {
    const message = JSON.parse(payload) as Message;
    if (typeof message.from !== 'string') return undefined;
    if (message.changed !== undefined) {
      const good = message.changed.every(
        ([id, runner, generation]) =>
          isUuid(id) && (runner === null || isUuid(runner)) && Number.isSafeInteger(generation),
      );
      if (!good) return undefined;
    }
    return message;
  } catch {
    return undefined;
  }
}
