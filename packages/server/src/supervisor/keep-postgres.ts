import { setTimeout as sleep } from 'node:timers/promises';
import { SpaceReserve, startPostgres, type PostgresInstance } from '@releap/database';
import type { Logger } from 'pino';

const BACKOFF_FIRST_MS = 250;
const BACKOFF_MAX_MS = 30_000;

/** The private PostgreSQL, restarted whenever it ends unexpectedly. */
export interface KeptPostgres {
  url: string;
  version: string;
  stop(): Promise<void>;
}

/** @throws when it cannot be started the first time. */
export async function keepPostgres(dir: string, binariesDir: string, log: Logger): Promise<KeptPostgres> {
  const start = (): Promise<PostgresInstance> => startPostgres({ dir, binariesDir, log });
  const reserve = await SpaceReserve.open({ dir, log });
  const first = await start().catch(async (error: unknown) => {
    await reserve[Symbol.asyncDispose]();
    throw error;
  });
  const stopping = new AbortController();
  let current: PostgresInstance | undefined = first;
  const watch = (async () => {
    for (let delay = BACKOFF_FIRST_MS; ; ) {
      if (current !== undefined) {
        const how = await current.exited;
        if (stopping.signal.aborted) return;
        log.error(`PostgreSQL ended: ${how}; starting it again`);
        await current.stop();
        current = undefined;
      }
      try {
        current = await start();
        delay = BACKOFF_FIRST_MS;
        log.info('PostgreSQL is back');
      } catch (error) {
        log.error({ err: error, again_in_ms: delay }, 'PostgreSQL does not start');
        await sleep(delay, undefined, { signal: stopping.signal }).catch(() => undefined);
        delay = Math.min(delay * 2, BACKOFF_MAX_MS);
      }
      if (stopping.signal.aborted) break;
    }
  })();
  return {
    url: first.url(),
    version: first.version,
    async stop() {
      stopping.abort();
      await reserve[Symbol.asyncDispose]();
      await current?.stop();
      await watch;
      // It may have been restarted concurrently.
      await current?.stop();
    },
  };
}
