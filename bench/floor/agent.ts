/** Talks to the agent of a guest that was restored by hand: no code of the runner on the way. */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';

export const ATTEMPT_DEADLINE_MS = 60_000;
const MAGIC = Buffer.from('\xf5releap-guest\x00\x01\xae', 'latin1');
const OPEN = 1;
const RESULT = 5;
const ERROR = 6;
const HELLO = 10;

function frame(type: number, stream: number, body: unknown): Buffer {
  const payload = Buffer.from(JSON.stringify(body));
  const head = Buffer.alloc(9);
  head.writeUInt32BE(payload.length, 0);
  head.writeUInt8(type, 4);
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, payload]);
}

/** QEMU creates its sockets some time after it has started. */
export async function connected(path: string): Promise<Socket> {
  for (const end = Date.now() + ATTEMPT_DEADLINE_MS; ; ) {
    const socket = connect(path);
    try {
      await once(socket, 'connect');
      return socket;
    } catch (error) {
      if (Date.now() > end) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }
}

/** The frames that an agent sends, from its HELLO on. Earlier bytes are of the connection over which the template was made. */
async function* framesOf(socket: Socket): AsyncGenerator<{ type: number; stream: number; payload: string }> {
  let pending: Buffer = Buffer.alloc(0);
  let greeted = false;
  for await (const chunk of socket as AsyncIterable<Buffer>) {
    pending = Buffer.concat([pending, chunk]);
    if (!greeted) {
      const at = pending.indexOf(MAGIC);
      if (at < 0) continue;
      pending = pending.subarray(at + MAGIC.length);
      greeted = true;
    }
    while (pending.length >= 9 && pending.length >= 9 + pending.readUInt32BE(0)) {
      const length = pending.readUInt32BE(0);
      const payload = pending.subarray(9, 9 + length).toString('utf8');
      yield { type: pending.readUInt8(4), stream: pending.readUInt32BE(5), payload };
      pending = pending.subarray(9 + length);
    }
  }
}

/** What an agent is asked first, with its arguments; each guest gets clock and random numbers besides. */
export type Greeting = { method: 'configure' | 'reconfigure' } & Record<string, unknown>;

/** Talks to the agent: one request at a time. */
export class Agent {
  readonly #socket: Socket;
  readonly #frames: ReturnType<typeof framesOf>;
  #stream = -1;

  constructor(socket: Socket) {
    this.#socket = socket;
    this.#frames = framesOf(socket);
  }

  /** HELLO and the greeting in one go; resolves when the agent has carried the greeting out. */
  async greet(greeting: Greeting): Promise<void> {
    const hello = frame(HELLO, 0, { protocol: 1, nonce: randomBytes(16).toString('hex') });
    const identity = {
      machine_id: randomBytes(16).toString('hex'),
      clock_ns: (BigInt(Date.now()) * 1_000_000n).toString(),
      entropy: randomBytes(64).toString('base64'),
    };
    this.#socket.write(Buffer.concat([MAGIC, hello, this.#open({ ...greeting, ...identity })]));
    await this.#result();
  }

  /** A command that has to succeed. */
  async run(shell: string): Promise<void> {
    this.#socket.write(this.#open({ method: 'exec', shell, timeout_ms: ATTEMPT_DEADLINE_MS }));
    const answer = await this.#result();
    if ((JSON.parse(answer) as { exit_code: number }).exit_code !== 0)
      throw new Error(`'${shell.slice(0, 80)}' answered ${answer}`);
  }

  #open(request: object): Buffer {
    this.#stream += 2;
    return frame(OPEN, this.#stream, request);
  }

  async #result(): Promise<string> {
    for (;;) {
      const next = await this.#frames.next();
      if (next.done === true) throw new Error('the agent hung up');
      const { type, stream, payload } = next.value;
      if (type === ERROR) throw new Error(`the agent answered ${payload}`);
      if (type === RESULT && stream === this.#stream) return payload;
    }
  }
}
