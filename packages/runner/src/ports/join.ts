import type { Socket } from 'node:net';
import type { PortConnection } from './connect-port.ts';

/** A connection on which nothing moves in either direction for this long is closed. */
const IDLE_MS = 3_600_000;

/**
 * Carries bytes both ways. Each direction ends by itself, a reset on one side ends the other one, and a slow reader slows its
 * writer.
 * @param onEnd called once, when both are closed
 */
export function join(client: Socket, server: PortConnection, onEnd: () => void): void {
  const { readable, writable } = server;
  const open = new Set<object>([client, readable, writable]);
  const abort = (): void => {
    clearTimeout(idle);
    server.reset();
    client.destroy();
  };
  const idle = setTimeout(abort, IDLE_MS).unref();
  for (const stream of open as Set<Socket>) {
    stream.on('error', abort);
    stream.on('close', () => {
      open.delete(stream);
      const isCut =
        stream === client ? !client.readableEnded || !readable.readableEnded : stream.errored !== null;
      if (isCut) abort();
      if (open.size > 0) return;
      clearTimeout(idle);
      onEnd();
    });
  }
  for (const [from, to] of [
    [client, writable],
    [readable, client],
  ] as const) {
    from.on('data', () => idle.refresh());
    from.pipe(to);
  }
}
