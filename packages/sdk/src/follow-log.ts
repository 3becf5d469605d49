/** Logs that grow: read as they come, across connections that are cut. */
import { pause } from './deadline.ts';
import { hasStatus, ReleapError } from './error.ts';
import { LogPosition } from './log-position.ts';
import type { RawAnswer } from './raw-answer.ts';

const RETRY_MS = 1_000;
/** Calls in a row that may fail before following gives up. */
const RETRIES = 10;

/** Takes the next bytes of a log; no more are read until it has resolved. */
export type LogWriter = (chunk: Uint8Array) => Promise<void>;

export interface FollowedLog {
  read: (follow: boolean) => Promise<RawAnswer>;
  /** Whether no more is written to it. */
  isEnded: () => Promise<boolean>;
  write: LogWriter;
}

/**
 * Reads until the log has ended. After a connection that was cut, or an answer that ended early, the log is read
 * again, and skips what was written already.
 * @throws ReleapError also when the log has ended and there is none (404)
 */
export async function followLog(signal: AbortSignal, { read, isEnded, write }: FollowedLog): Promise<void> {
  const position = new LogPosition();
  let failures = 0;
  for (;;) {
    // Asked before the log is read: output in between is then read again.
    const ended = await isEnded();
    try {
      let skip = position.isStart ? 0 : await position.findIn(await read(false));
      for await (const chunk of await read(true)) {
        const fresh = chunk.subarray(Math.min(skip, chunk.length));
        skip -= chunk.length - fresh.length;
        failures = 0;
        if (fresh.length === 0) continue;
        position.advance(fresh);
        await write(fresh);
      }
    } catch (error) {
      if (!(error instanceof ReleapError) || error.kind === 'aborted') throw error;
      // There is no log until a host has taken it up.
      const early = hasStatus(error, 404, 'log_not_found') && !ended;
      if (!early && (error.status === 404 || ++failures > RETRIES)) throw error;
    }
    if (ended) return;
    await pause(RETRY_MS, signal);
  }
}
