/** `process/execute`: one request, one answer, no streams. The fall-back where there is no web socket. */
import type { ProcessExecuteRequest, ProcessStreamStart } from '@releap/contract/wire';
import { ReleapError } from '../error.ts';
import { quoteForShell } from '../quote.ts';
import type { Toolbox } from '../toolbox.ts';

export interface ProcessStreams {
  /** Null: the command's stdin is at its end from the start. */
  stdin: (NodeJS.ReadableStream & AsyncIterable<Buffer | string>) | null;
  stdout: NodeJS.WritableStream;
  stderr: NodeJS.WritableStream;
}

export interface ProcessEnd {
  exitCode: number;
  timedOut: boolean;
  /** Why the command could not start. */
  error?: string;
}

/** Longest command without an explicit timeout. */
const EXECUTE_MS = 3_600_000;

export async function executeProcess(
  toolbox: Toolbox,
  start: ProcessStreamStart,
  streams: ProcessStreams,
): Promise<ProcessEnd> {
  if (start.pty) throw new ReleapError('failed', 'this service has no terminals', { resource: 'terminal' });
  if (streams.stdin)
    throw new ReleapError('failed', 'this service cannot pass stdin on', { resource: 'stdin' });
  const body: ProcessExecuteRequest = {
    command: start.command ?? (start.argv ?? []).map(quoteForShell).join(' '),
    ...(start.cwd === undefined ? {} : { cwd: start.cwd }),
    ...(start.env === undefined ? {} : { env: start.env }),
    ...(start.timeout === undefined ? {} : { timeout: start.timeout }),
  };
  const answer = await toolbox.api.executeProcess(
    { body },
    { timeoutMs: (start.timeout === undefined ? EXECUTE_MS : start.timeout * 1000) + 30_000 },
  );
  streams.stdout.write(answer.result);
  return { exitCode: answer.exitCode, timedOut: answer.exitCode === 124 && start.timeout !== undefined };
}
