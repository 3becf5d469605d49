/** What the handler of an instance does, as its host tells. */
import { setTimeout as sleep } from 'node:timers/promises';
import { EntrypointOfSandbox, entrypointPath } from '@releap/contract';
import { Compile } from 'typebox/compile';
import { hostDocument, type HostClient } from '../../fleet/runners/host-client.ts';
import type { RunningInstance } from '../instances/instance-watch.ts';

const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 1_000;
/** How long a port may stay closed after the entrypoint has ended: it may have started a daemon. */
const ENDED_MS = 2_000;
/** Of the log that a reason quotes. */
const QUOTED_LINES = 10;
const QUOTED_CHARS = 1_000;
const LOG_MAX_BYTES = 16 * 1024 * 1024;

const Answer = Compile(EntrypointOfSandbox);

/** Why a version cannot serve. */
export class HandlerError extends Error {}

/**
 * Waits until the handler accepts connections.
 * @param listenMs how long, in milliseconds
 * @throws HandlerError when it ends before, or takes too long
 */
export async function waitUntilListening(
  hosts: HostClient,
  instance: RunningInstance,
  port: number,
  listenMs: number,
  signal: AbortSignal,
): Promise<void> {
  const until = performance.now() + listenMs;
  let endedAt: number | undefined;
  for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
    if (await hosts.listens({ ...instance, port, signal })) return;
    const ended = await entrypointEnd(hosts, instance, signal);
    const now = performance.now();
    endedAt = ended === undefined ? undefined : (endedAt ?? now);
    if (ended !== undefined && endedAt !== undefined && (now - endedAt >= ENDED_MS || now >= until))
      throw new HandlerError(
        `${ended} before it listened on port ${port}${await lastOutput(hosts, instance, signal)}`,
      );
    if (now >= until)
      throw new HandlerError(
        `nothing listened on port ${port} within ${listenMs / 1000} s; the handler must listen on the port in RLP_FN_PORT` +
          (await lastOutput(hosts, instance, signal)),
      );
    await sleep(pause, undefined, { signal });
  }
}

/** How the entrypoint ended, as the start of a sentence; undefined while it runs, or when that is not known. */
async function entrypointEnd(
  hosts: HostClient,
  instance: RunningInstance,
  signal: AbortSignal,
): Promise<string | undefined> {
  const shown = `instance ${instance.sandboxId}`;
  try {
    const answer = await hosts.log({
      ...instance,
      path: entrypointPath(instance.sandboxId),
      subject: instance.sandboxId,
      shown,
      follow: false,
      signal,
    });
    if (answer === undefined) return undefined;
    const { state, exit_code, reason } = await hostDocument(answer, Answer, { maxBytes: 64 * 1024, shown });
    if (state === 'none')
      return 'the image has no entrypoint and the version no handler: nothing was started';
    if (state === 'failed') return `the handler could not be started (${reason ?? 'no reason was given'})`;
    return state === 'exited' ? `the handler ended with status ${exit_code ?? 'unknown'}` : undefined;
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof HandlerError) throw error;
    // The host is asked again with the port.
    return undefined;
  }
}

/** The last lines that the handler has written, as the end of a sentence. */
async function lastOutput(
  hosts: HostClient,
  instance: RunningInstance,
  signal: AbortSignal,
): Promise<string> {
  const log = await hosts
    .log({
      ...instance,
      path: `/vms/${instance.sandboxId}/logs/entrypoint`,
      subject: instance.sandboxId,
      shown: `instance ${instance.sandboxId}`,
      follow: false,
      signal,
    })
    .catch(() => undefined);
  if (log === undefined) return '';
  let text = '';
  let bytes = 0;
  try {
    for await (const chunk of log as AsyncIterable<Buffer>) {
      bytes += chunk.length;
      if (bytes > LOG_MAX_BYTES) break;
      text = (text + chunk.toString('utf8')).slice(-4 * QUOTED_CHARS);
    }
  } catch {
    // What has come is better than nothing.
  }
  const lines = text
    .split('\n')
    .map((line) => line.replaceAll(/\p{Cc}/gu, ' ').trimEnd())
    // The last line of the log, from the agent, repeats the reason.
    .filter((line) => line.trim() !== '' && !line.startsWith('releap: the entrypoint '));
  if (lines.length === 0) return '; it wrote no output';
  return `; its last output:\n${lines.slice(-QUOTED_LINES).join('\n').slice(-QUOTED_CHARS).toWellFormed()}`;
}
