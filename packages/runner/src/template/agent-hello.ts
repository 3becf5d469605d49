import { randomBytes } from 'node:crypto';
import type { Socket } from 'node:net';
import { connectUnix } from '../vmm/connect-unix.ts';

/** Marks the start of a HELLO, so that it can be found after a truncated frame of an earlier session. */
const HELLO_MAGIC = Buffer.from('\xf5releap-guest\x00\x01\xae', 'latin1');
const TYPE_HELLO = 10;
const FRAME_HEADER_BYTES = 9;
/** An agent sends a few hundred bytes up to its HELLO. */
const ANSWER_MAX_BYTES = 256 * 1024;

/** The host's HELLO: magic, then a frame (length, type, stream, JSON). */
function helloFrame(nonce: string): Buffer {
  const payload = Buffer.from(JSON.stringify({ protocol: 1, nonce }));
  const header = Buffer.alloc(FRAME_HEADER_BYTES);
  header.writeUInt32BE(payload.length, 0);
  header.writeUInt8(TYPE_HELLO, 4);
  return Buffer.concat([HELLO_MAGIC, header, payload]);
}

/**
 * Waits until the guest's agent responds to a HELLO on its socket, and disconnects.
 * @throws when it has not responded within `deadlineMs`, and the reason of `signal` once that is aborted
 */
export async function awaitAgent(
  socketPath: string,
  options: { deadlineMs: number; alive?: () => boolean; signal?: AbortSignal | undefined },
): Promise<void> {
  const { deadlineMs, signal } = options;
  const socket = await connectUnix(socketPath, {
    deadlineMs,
    ...(options.alive && { alive: options.alive }),
    ...(signal && { signal }),
  });
  try {
    await answer(socket, deadlineMs, signal);
  } finally {
    socket.destroy();
  }
}

function answer(socket: Socket, deadlineMs: number, signal: AbortSignal | undefined): Promise<void> {
  const nonce = randomBytes(16).toString('hex');
  return new Promise((resolve, reject) => {
    const settle = (error?: Error): void => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
      if (error) reject(error);
      else resolve();
    };
    const timer = setTimeout(
      () => settle(new Error(`the guest agent did not answer within ${deadlineMs} ms`)),
      deadlineMs,
    );
    const onAbort = (): void => settle(signal?.reason as Error);
    signal?.addEventListener('abort', onAbort, { once: true });
    let seen = Buffer.alloc(0);
    socket.on('data', (chunk: Buffer) => {
      seen = Buffer.concat([seen, chunk]);
      const at = seen.indexOf(HELLO_MAGIC);
      if (at >= 0 && seen.includes(nonce, at)) settle();
      else if (seen.length > ANSWER_MAX_BYTES) settle(new Error('the guest agent talks without answering'));
    });
    socket.on('error', (error) => settle(error));
    socket.on('close', () => settle(new Error('the VMM ended before the guest agent answered')));
    socket.write(helloFrame(nonce));
  });
}
