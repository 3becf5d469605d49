import { type Client, escapeIdentifier } from 'pg';
import type { Logger } from 'pino';
import { newClient } from './connection.ts';

export interface ListenerOptions {
  url: string;
  channel: string;
  log: Logger;
  onMessage: (payload: string) => void;
  /** After every (re)connect: notifications in between were lost, so recheck everything. */
  onReconnect: () => void;
  /** How often the connection is probed, in milliseconds; 10 s. */
  probeMs?: number;
}

/** A dedicated connection that listens on one channel and reconnects when it breaks. */
export interface Listener extends AsyncDisposable {
  close(): Promise<void>;
}

const RETRY_MS = 1_000;
/** Interval of the probes: a half-open connection delivers neither errors nor notifications. */
const PROBE_MS = 10_000;
const PROBE_TIMEOUT_MS = 5_000;

/** Starts to LISTEN. Resolves once the first attempt has been made, whether or not it succeeded. */
export async function listen(options: ListenerOptions): Promise<Listener> {
  let client: Client | undefined;
  /** Resolves once it listens. */
  let listening: Client | undefined;
  let timer: NodeJS.Timeout | undefined;
  let closed = false;

  const retry = (): void => {
    if (closed || timer !== undefined) return;
    timer = setTimeout(() => {
      timer = undefined;
      void connect();
    }, RETRY_MS);
    timer.unref();
  };

  async function connect(): Promise<void> {
    const next = newClient(options.url, {
      connectionTimeoutMillis: 5_000,
      query_timeout: PROBE_TIMEOUT_MS,
      keepAlive: true,
      application_name: 'releap-listen',
    });
    client = next;
    const end = async (): Promise<void> => {
      try {
        await next.end();
      } catch (error) {
        options.log.debug({ err: error }, 'a broken connection could not be ended');
      }
    };
    const broken = (error?: Error): void => {
      if (client !== next) return;
      client = undefined;
      listening = undefined;
      if (!closed)
        options.log.warn(
          { err: error, channel: options.channel },
          'the listening connection broke; reconnecting',
        );
      void end();
      retry();
    };
    next.on('error', broken);
    next.on('end', () => broken());
    next.on('notification', ({ payload }) => options.onMessage(payload ?? ''));
    try {
      await next.connect();
      await next.query(`listen ${escapeIdentifier(options.channel)}`);
      if (client !== next) return;
      listening = next;
      if (!closed) options.onReconnect();
    } catch (error) {
      broken(error as Error);
    }
  }

  await connect();
  const look = async (probed: Client): Promise<void> => {
    try {
      await probed.query('select 1');
    } catch (error) {
      probed.emit('error', error);
    }
  };
  const probe = setInterval(() => {
    if (listening !== undefined) void look(listening);
  }, options.probeMs ?? PROBE_MS);
  probe.unref();
  const close = async (): Promise<void> => {
    closed = true;
    clearTimeout(timer);
    clearInterval(probe);
    const last = client;
    client = undefined;
    listening = undefined;
    await last?.end().catch(() => undefined);
  };
  return { close, [Symbol.asyncDispose]: close };
}
