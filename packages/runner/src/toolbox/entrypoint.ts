/**
 * `process/session/entrypoint`: the image's entrypoint in the form of a session with one command. Its output is the log of the
 * entrypoint, which does not tell the two streams apart: all of it is standard output.
 */
import { text } from 'node:stream/consumers';
import type { FastifyInstance } from 'fastify';
import { WebSocket, WebSocketServer } from 'ws';
import { Budget } from '../budget/budget.ts';
import { acceptUpgrade, routeUpgrades, upgradeOf } from '../data/upgrades.ts';
import type { GuestClient } from '../guest/index.ts';
import { type LogFile, readLog } from '../logs/log-file.ts';
import type { FindGuest } from './find-guest.ts';
import { ToolboxError, toToolboxError } from './toolbox-error.ts';

/** The open log of the entrypoint of a sandbox that runs here. */
export type FindEntrypointLog = (vmId: string) => LogFile | undefined;

const SESSIONS = '/vms/:id/toolbox/process/session';
/** Both the session and its command. */
const ID = 'entrypoint';
/** Precedes the bytes of standard output in messages of a log. */
const STDOUT_MARKER = Buffer.of(1, 1, 1);
/** A client this far behind is disconnected. */
const BACKLOG_MAX_BYTES = 4 * 1024 * 1024;
/** Each may hold a backlog. */
const FOLLOWERS_MAX = { each: 16, all: 64 };
const HEARTBEAT_MS = 30_000;
/** Close code of a service that restarts (RFC 6455, registered with IANA). */
const CLOSE_RESTART = 1012;
/** The last output may arrive after the end of the entrypoint was reported. */
const LAST_OUTPUT_MS = 250;

interface Route {
  Params: { id: string };
  Querystring: { follow?: string };
}

export function registerEntrypoint(app: FastifyInstance, find: FindGuest, findLog: FindEntrypointLog): void {
  const sockets = new WebSocketServer({ noServer: true, maxPayload: 1024 });
  const followers = new Budget(FOLLOWERS_MAX);

  app.get<Route>(`${SESSIONS}/entrypoint`, async (request) => {
    const guest = await find(request.params.id);
    return { sessionId: ID, commands: await describe(guest).catch(rethrow) };
  });

  app.get<Route>(`${SESSIONS}/entrypoint/logs`, async (request, reply) => {
    const { id } = request.params;
    const guest = await find(id);
    const log = findLog(id);
    const upgrade = upgradeOf(request, 'websocket');
    if (upgrade === undefined) {
      await log?.flush();
      const output = (log && (await readLog(log.path)))?.toString('utf8') ?? '';
      return { output, stdout: output, stderr: '' };
    }
    if (followers.take(id, 1) === 0)
      throw new ToolboxError(429, `more than ${FOLLOWERS_MAX.each} clients follow the log of the entrypoint`);
    acceptUpgrade(reply, upgrade);
    upgrade.socket.once('close', () => followers.release(id, 1));
    sockets.handleUpgrade(request.raw, upgrade.socket, upgrade.head, (ws) => {
      follow(ws, guest, log).catch(() => ws.terminate());
    });
    return reply;
  });
  routeUpgrades(app);
  app.addHook('onClose', () => {
    for (const ws of sockets.clients) ws.terminate();
  });
}

/** The command of the session; none where the image has no entrypoint. */
async function describe(guest: GuestClient): Promise<{ id: string; command: string; exitCode?: number }[]> {
  const { entrypoint } = await guest.status();
  if (entrypoint.state === 'none') return [];
  const { exitCode } = entrypoint;
  return [
    {
      id: ID,
      command: await commandLine(guest, entrypoint.pid),
      ...(exitCode !== undefined && { exitCode }),
    },
  ];
}

/** While it runs; the agent does not keep it. */
async function commandLine(guest: GuestClient, pid: number | undefined): Promise<string> {
  if (pid === undefined) return '';
  const words = await text(guest.files.read(`/proc/${pid}/cmdline`)).catch(() => '');
  return words.split('\0').join(' ').trim();
}

/** Sends what the log has and what follows, until the entrypoint or the sandbox ends. */
async function follow(ws: WebSocket, guest: GuestClient, log: LogFile | undefined): Promise<void> {
  const stops: (() => void)[] = [];
  const atClose = (stop: () => void): void => {
    if (ws.readyState === WebSocket.CLOSED) stop();
    else stops.push(stop);
  };
  ws.once('close', () => {
    for (const stop of stops) stop();
  });
  ws.on('error', () => ws.terminate());
  let heard = true;
  ws.on('pong', () => {
    heard = true;
  });
  const heartbeat = setInterval(() => {
    if (!heard) ws.terminate();
    heard = false;
    ws.ping();
  }, HEARTBEAT_MS);
  atClose(() => clearInterval(heartbeat));

  const send = (data: Buffer): void => {
    if (data.length === 0 || ws.readyState !== WebSocket.OPEN) return;
    ws.send(Buffer.concat([STDOUT_MARKER, data]), { binary: true });
    if (ws.bufferedAmount > BACKLOG_MAX_BYTES) ws.terminate();
  };
  const end = (): void => ws.close(1000);
  const following = await log?.follow(send, end);
  if (following !== undefined) {
    send(following.kept);
    atClose(following.stop);
  }
  let last: NodeJS.Timeout | undefined;
  atClose(
    guest.onEntrypoint(({ state }) => {
      if (state !== 'running') last ??= setTimeout(end, LAST_OUTPUT_MS);
    }),
  );
  // As after a pause: the client may follow again.
  atClose(guest.onClose(() => ws.close(CLOSE_RESTART)));
  atClose(() => clearTimeout(last));
}

function rethrow(error: unknown): never {
  throw toToolboxError(error);
}
