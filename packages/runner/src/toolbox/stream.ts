/** `GET /vms/:id/toolbox/process/stream` upgraded to a WebSocket: a command with its streams kept apart. */
import type { Readable } from 'node:stream';
import type { FastifyInstance } from 'fastify';
import type { Logger } from 'pino';
import { Type, type Static } from 'typebox';
import { Value } from 'typebox/value';
import { type RawData, WebSocket, WebSocketServer } from 'ws';
import { acceptUpgrade, routeUpgrades, upgradeOf } from '../data/upgrades.ts';
import { GuestError, type GuestClient, type GuestProcess } from '../guest/index.ts';
import type { FindGuest } from './find-guest.ts';
import { ToolboxError, toToolboxError } from './toolbox-error.ts';

const MESSAGE_MAX_BYTES = 4 * 1024 * 1024;
/** How long a client may take to say what to run. */
const START_DEADLINE_MS = 10_000;
const HEARTBEAT_MS = 30_000;
const STDIN = 0;
const STDOUT = 1;
const STDERR = 2;

const Size = {
  rows: Type.Integer({ minimum: 1, maximum: 4096 }),
  cols: Type.Integer({ minimum: 1, maximum: 4096 }),
};

const Start = Type.Object({
  type: Type.Literal('start'),
  command: Type.Optional(Type.String({ minLength: 1 })),
  argv: Type.Optional(Type.Array(Type.String(), { minItems: 1, maxItems: 65_536 })),
  cwd: Type.Optional(Type.String({ maxLength: 4095 })),
  env: Type.Optional(Type.Record(Type.String(), Type.String())),
  user: Type.Optional(Type.String({ maxLength: 256 })),
  timeout: Type.Optional(Type.Number({ minimum: 0, maximum: 30 * 86_400 })),
  stdin: Type.Optional(Type.Boolean()),
  pty: Type.Optional(Type.Object(Size)),
  output_end: Type.Optional(Type.Boolean()),
});

const Control = Type.Union([
  Type.Object({ type: Type.Literal('stdin-end') }),
  Type.Object({ type: Type.Literal('signal'), signal: Type.String({ maxLength: 16 }) }),
  Type.Object({ type: Type.Literal('resize'), ...Size }),
]);

export function registerStream(app: FastifyInstance, find: FindGuest, log: Logger): void {
  const sockets = new WebSocketServer({ noServer: true, maxPayload: MESSAGE_MAX_BYTES });
  app.get<{ Params: { id: string } }>('/vms/:id/toolbox/process/stream', async (request, reply) => {
    const upgrade = upgradeOf(request, 'websocket');
    if (upgrade === undefined) {
      reply.header('upgrade', 'websocket').header('connection', 'Upgrade');
      throw new ToolboxError(426, 'this path is a WebSocket');
    }
    const guest = await find(request.params.id);
    acceptUpgrade(reply, upgrade);
    sockets.handleUpgrade(request.raw, upgrade.socket, upgrade.head, (ws) => serve(ws, guest, log));
  });
  routeUpgrades(app);
  app.addHook('onClose', () => {
    for (const ws of sockets.clients) ws.terminate();
  });
}

function serve(ws: WebSocket, guest: GuestClient, log: Logger): void {
  const session = new ExecSession(ws, guest);
  session.run().catch((error: unknown) => {
    log.warn({ err: error }, 'toolbox stream failed');
    ws.terminate();
  });
}

/** One WebSocket, one command. */
class ExecSession {
  readonly #ws: WebSocket;
  readonly #guest: GuestClient;
  #process: GuestProcess | undefined;
  #heard = true;
  #tellsEnds = false;
  readonly #started = Promise.withResolvers<GuestProcess | undefined>();

  constructor(ws: WebSocket, guest: GuestClient) {
    this.#ws = ws;
    this.#guest = guest;
    ws.on('message', (data, binary) => this.#message(data, binary));
    ws.on('pong', () => {
      this.#heard = true;
    });
    ws.on('error', () => ws.terminate());
    ws.on('close', () => {
      this.#started.resolve(undefined);
      this.#process?.cancel(); // the client is gone; after the end this does nothing
    });
  }

  async run(): Promise<void> {
    const deadline = setTimeout(() => this.#refuse(408, 'no start message came in time'), START_DEADLINE_MS);
    const heartbeat = setInterval(() => this.#beat(), HEARTBEAT_MS);
    try {
      const running = await this.#started.promise;
      clearTimeout(deadline);
      if (running !== undefined) await this.#follow(running);
    } catch (error) {
      this.#fail(error);
    } finally {
      clearTimeout(deadline);
      clearInterval(heartbeat);
    }
  }

  #start(start: Static<typeof Start>): void {
    const { command, argv, cwd, env, user, timeout, stdin, pty } = start;
    this.#tellsEnds = start.output_end === true;
    if ((command === undefined) === (argv === undefined)) {
      throw new ToolboxError(400, 'a start message has either command or argv');
    }
    const running = this.#guest.exec({
      ...(command === undefined ? {} : { shell: command }),
      ...(argv === undefined ? {} : { argv }),
      ...(cwd === undefined ? {} : { cwd }),
      ...(env === undefined ? {} : { env }),
      ...(user === undefined ? {} : { user }),
      ...(stdin === undefined ? {} : { stdin }),
      ...(pty === undefined ? {} : { pty: { rows: pty.rows, cols: pty.cols } }),
      ...(timeout === undefined ? {} : { timeoutMs: Math.ceil(timeout * 1000) }),
    });
    running.stdin.on('drain', () => this.#ws.resume());
    running.stdin.on('close', () => this.#ws.resume());
    this.#process = running;
    this.#started.resolve(running);
  }

  async #follow(running: GuestProcess): Promise<void> {
    const [exit] = await Promise.all([
      running.exit,
      this.#forward(running.stdout, STDOUT),
      this.#forward(running.stderr, STDERR),
    ]);
    this.#say({
      type: 'exit',
      exit_code: exit.exitCode,
      timed_out: exit.timedOut,
      ...(exit.signal === undefined ? {} : { signal: exit.signal }),
      ...(exit.error === undefined ? {} : { error: exit.error }),
    });
    this.#ws.resume();
    this.#ws.close(1000);
  }

  /** Sends a piece only when the one before has left: a slow client slows the command, not this process. */
  async #forward(source: Readable, channel: number): Promise<void> {
    for await (const chunk of source as AsyncIterable<Buffer>) {
      const sent = Promise.withResolvers<void>();
      this.#ws.send(Buffer.concat([Buffer.of(channel), chunk]), { binary: true }, (error) => {
        if (error === undefined || error === null) sent.resolve();
        else sent.reject(new GuestError('aborted', 'the client went away', { cause: error }));
      });
      await sent.promise;
    }
    if (this.#tellsEnds) this.#say({ type: 'output-end', channel });
  }

  #message(data: RawData, binary: boolean): void {
    this.#heard = true;
    const bytes = Array.isArray(data) ? Buffer.concat(data) : Buffer.from(data as Buffer);
    if (binary) {
      this.#input(bytes);
      return;
    }
    let message: unknown;
    try {
      message = JSON.parse(bytes.toString('utf8'));
    } catch {
      this.#refuse(400, 'a text message is not JSON');
      return;
    }
    if (Value.Check(Start, message)) {
      if (this.#process !== undefined) {
        this.#refuse(400, 'a command was started already');
        return;
      }
      try {
        this.#start(message);
      } catch (error) {
        this.#fail(error);
      }
    } else if (Value.Check(Control, message)) {
      this.#control(message);
    } else {
      this.#refuse(400, 'a message is none of start, stdin-end, signal, resize in their documented form');
    }
  }

  #input(bytes: Buffer): void {
    const stdin = this.#process?.stdin;
    if (bytes[0] !== STDIN) this.#refuse(400, 'a binary message starts with the byte 0 (stdin)');
    else if (stdin === undefined) this.#refuse(400, 'input came before start');
    else if (stdin.writable && bytes.length > 1 && !stdin.write(bytes.subarray(1))) this.#ws.pause();
  }

  #control(message: Static<typeof Control>): void {
    const running = this.#process;
    if (running === undefined) {
      this.#refuse(400, `${message.type} came before start`);
      return;
    }
    if (message.type === 'stdin-end') {
      running.stdin.end();
      return;
    }
    const done = message.type === 'signal' ? running.signal(message.signal) : running.resize(message);
    done.catch((error: unknown) => {
      // The command may have ended meanwhile: that is no failure.
      if (error instanceof GuestError && error.code === 'invalid')
        this.#say({ type: 'warning', error: error.message });
    });
  }

  #say(message: Record<string, unknown>): void {
    if (this.#ws.readyState === WebSocket.OPEN) this.#ws.send(JSON.stringify(message));
  }

  #fail(error: unknown): void {
    const failure = toToolboxError(error);
    this.#refuse(failure instanceof ToolboxError ? failure.statusCode : 500, failure.message);
  }

  #refuse(status: number, error: string): void {
    this.#say({ type: 'error', status, error });
    this.#ws.resume();
    this.#ws.close(status < 500 ? 1008 : 1011);
    this.#process?.cancel();
    this.#started.resolve(undefined);
  }

  #beat(): void {
    if (this.#ws.isPaused) return; // its pongs cannot be heard
    if (!this.#heard) {
      this.#ws.terminate();
      return;
    }
    this.#heard = false;
    this.#ws.ping();
  }
}
