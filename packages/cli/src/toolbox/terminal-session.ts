/** A terminal of a sandbox's toolbox, which outlives its connections, on the terminal of this process. */
import { toolboxOperations } from '@releap/sdk';
import { type RawData, WebSocket } from 'ws';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { type Context, printable, remark } from '../terminal.ts';
import { openSocket } from './socket.ts';
import type { Toolbox } from './toolbox.ts';

/** Ctrl-], as in telnet. */
const DETACH = 0x1d;
const ALIVE_MS = 15_000;

/**
 * Connects to the terminal of that name, and makes it if there is none.
 * @returns the exit code of its shell; 0 when the user has detached from it
 */
export async function attachTerminal(context: Context, toolbox: Toolbox, name: string): Promise<number> {
  const { stdin, stdout } = context.terminal;
  if (!(stdin.isTTY && stdout.isTTY)) throw usageError('rlp shell needs a terminal on stdin and stdout');
  // A terminal that does not know its size says 0.
  const size = () => ({ rows: stdout.rows || 24, cols: stdout.columns || 80 });
  const isNew = await ensureTerminal(toolbox, name, { ...size(), term: context.terminal.env['TERM'] });
  const params = { terminal_id: name };
  const resize = (): void => {
    toolbox.api.resizeTerminal({ params, body: size() }).catch(() => undefined);
  };
  if (!isNew) resize();
  const path = toolboxOperations.connectTerminal.path.replace(':terminal_id', encodeURIComponent(name));
  const ended = Promise.withResolvers<number>();
  const socket = await openSocket(toolbox, path, (opened) => receive(opened, stdout, ended));
  remark(context, `${isNew ? 'started' : 'attached to'} terminal ${name}; Ctrl-] detaches, and it continues`);
  const input = (chunk: Buffer): void => {
    const at = chunk.indexOf(DETACH);
    const typed = at < 0 ? chunk : chunk.subarray(0, at);
    if (typed.length > 0 && socket.readyState === WebSocket.OPEN) socket.send(typed);
    if (at >= 0) ended.resolve(EXIT.ok);
  };
  const abort = (): void => ended.reject(new CliError('interrupted', { exitCode: EXIT.interrupted }));
  const alive = setInterval(() => socket.pong(), ALIVE_MS);
  stdin.setRawMode?.(true);
  stdin.on('data', input);
  stdout.on('resize', resize);
  toolbox.signal.addEventListener('abort', abort, { once: true });
  try {
    return await ended.promise;
  } finally {
    clearInterval(alive);
    toolbox.signal.removeEventListener('abort', abort);
    stdout.off('resize', resize);
    stdin.off('data', input).pause();
    stdin.setRawMode?.(false);
    socket.close();
    setTimeout(() => socket.terminate(), 1000).unref();
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
    if (!(error instanceof CliError && error.status === 409)) throw error;
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
    const bytes = Buffer.isBuffer(data)
      ? data
      : Buffer.concat(Array.isArray(data) ? data : [Buffer.from(data)]);
    if (!binary) {
      const error = errorOf(bytes.toString('utf8'));
      if (error !== undefined) ended.reject(new CliError(error));
      return;
    }
    if (stdout.write(bytes)) return;
    socket.pause();
    stdout.once('drain', () => socket.resume());
  });
  socket.once('close', (code, reason) => {
    const text = reason.toString('utf8');
    const exitCode = code === 1000 ? memberOf(text, 'exitCode') : undefined;
    if (typeof exitCode === 'number') ended.resolve(exitCode);
    else
      ended.reject(
        new CliError(
          errorOf(text) ??
            'the connection has ended; the terminal continues: run the same command to attach again',
        ),
      );
  });
}

function errorOf(text: string): string | undefined {
  const error = memberOf(text, 'error');
  return typeof error === 'string' ? printable(error) : undefined;
}

function memberOf(text: string, name: string): unknown {
  try {
    return (JSON.parse(text) as Record<string, unknown>)[name];
  } catch {
    return undefined;
  }
}
