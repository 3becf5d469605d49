/** A terminal of a sandbox's toolbox, which outlives its connections, on a terminal of this machine. */
import { toolboxOperations } from '@releap/contract/wire';
import { type RawData, WebSocket } from 'ws';
import { aborted, hasStatus, ReleapError } from '../error.ts';
import type { Toolbox } from '../toolbox.ts';
import { bytesOf, keepAlive, openSocket, writeFrom } from './socket.ts';
import { type LocalTerminal, sizeOf } from './terminal.ts';

/** Ctrl-], as in telnet. */
const DETACH = 0x1d;

/**
 * Connects to the terminal of that name, and makes it if there is none. Ctrl-] detaches from it.
 * @param options.term the kind of terminal, as in `TERM`
 * @param options.onAttached called when it is connected
 * @returns the exit code of its shell; 0 when the user has detached from it
 */
export async function attachTerminal(
  toolbox: Toolbox,
  name: string,
  { stdin, stdout }: LocalTerminal,
  options: { term?: string | undefined; onAttached?: (isNew: boolean) => void } = {},
): Promise<number> {
  const isNew = await ensureTerminal(toolbox, name, { ...sizeOf(stdout), term: options.term });
  const params = { terminal_id: name };
  const resize = (): void => {
    toolbox.api.resizeTerminal({ params, body: sizeOf(stdout) }).catch(() => undefined);
  };
  if (!isNew) resize();
  const path = toolboxOperations.connectTerminal.path.replace(':terminal_id', encodeURIComponent(name));
  const ended = Promise.withResolvers<number>();
  const socket = await openSocket(toolbox, path, (opened) => receive(opened, stdout, ended));
  using _alive = keepAlive(socket);
  options.onAttached?.(isNew);
  const input = (chunk: Buffer): void => {
    const at = chunk.indexOf(DETACH);
    const typed = at < 0 ? chunk : chunk.subarray(0, at);
    if (typed.length > 0 && socket.readyState === WebSocket.OPEN) socket.send(typed);
    if (at >= 0) ended.resolve(0);
  };
  const abort = (): void => ended.reject(aborted(toolbox.signal));
  stdin.setRawMode?.(true);
  stdin.on('data', input);
  stdout.on('resize', resize);
  toolbox.signal.addEventListener('abort', abort, { once: true });
  try {
    return await ended.promise;
  } finally {
    toolbox.signal.removeEventListener('abort', abort);
    stdout.off('resize', resize);
    stdin.off('data', input).pause();
    stdin.setRawMode?.(false);
  }
}

/** @returns whether it was made */
async function ensureTerminal(
  toolbox: Toolbox,
  name: string,
  { rows, cols, term }: { rows: number; cols: number; term: string | undefined },
): Promise<boolean> {
  const make = () =>
    toolbox.api.createTerminal({
      body: { id: name, rows, cols, lazyStart: true, ...(term ? { envs: { TERM: term } } : {}) },
    });
  try {
    // One whose shell has ended gives its name.
    await make();
    return true;
  } catch (error) {
    if (!hasStatus(error, 409)) throw error;
    // Another 409 says that the sandbox does not run, and so does the next request then.
    await toolbox.api.getTerminal({ params: { terminal_id: name } });
    return false;
  }
}

function receive(
  socket: WebSocket,
  stdout: NodeJS.WritableStream,
  ended: PromiseWithResolvers<number>,
): void {
  socket.on('message', (data: RawData, binary: boolean) => {
    const bytes = bytesOf(data);
    if (binary) {
      writeFrom(socket, stdout, bytes);
      return;
    }
    const error = errorOf(bytes.toString('utf8'));
    if (error !== undefined) ended.reject(new ReleapError('failed', error));
  });
  socket.once('close', (code, reason) => {
    const text = reason.toString('utf8');
    const exitCode = code === 1000 ? memberOf(text, 'exitCode') : undefined;
    if (typeof exitCode === 'number') ended.resolve(exitCode);
    else
      ended.reject(
        new ReleapError(
          'failed',
          errorOf(text) ??
            'the connection has ended; the terminal continues: run the same command to attach again',
        ),
      );
  });
}

function errorOf(text: string): string | undefined {
  const error = memberOf(text, 'error');
  return typeof error === 'string' ? error : undefined;
}

function memberOf(text: string, name: string): unknown {
  try {
    return (JSON.parse(text) as Record<string, unknown>)[name];
  } catch {
    return undefined;
  }
}
