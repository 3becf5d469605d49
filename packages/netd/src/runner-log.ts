import type { NetdLogMessage } from '@releap/contract/netd';
import type { Facts, Log } from './log.ts';

/** Log lines are dropped while this much waits for the runner, in bytes. */
const WAITING_MAX = 256 * 1024;
/** Longest text of a fact: the runner ends a connection with a longer one, and names of a guest have any length. */
const FACT_MAX_CHARS = 1_000;

/**
 * A log whose lines are sent to the runner.
 * @param waitingBytes what the connection to the runner has not sent yet
 */
export function runnerLog(waitingBytes: () => number, send: (message: NetdLogMessage) => void): Log {
  const line = (level: NetdLogMessage['level']) => (facts: Facts, message: string) => {
    if (waitingBytes() <= WAITING_MAX) send({ type: 'log', level, message, facts: bounded(facts) });
  };
  return { error: line('error'), warn: line('warn'), info: line('info') };
}

function bounded(facts: Facts): Facts {
  return Object.fromEntries(
    Object.entries(facts).map(([key, value]) => [
      key,
      typeof value === 'string' ? value.slice(0, FACT_MAX_CHARS) : value,
    ]),
  );
}
