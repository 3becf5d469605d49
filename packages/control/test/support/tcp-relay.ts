/** A TCP relay to a server, which a test can stop and cut. */
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { once } from 'node:events';

export interface TcpRelay extends AsyncDisposable {
  readonly port: number;
  /** `pass`; `hold`: what clients send goes no further; `refuse`: connections are ended. */
  mode: 'pass' | 'hold' | 'refuse';
  /** Connections that were held. */
  readonly held: number;
}

export async function startRelay(targetPort: number): Promise<TcpRelay> {
  const sockets = new Set<Socket>();
  const waiting: (() => void)[] = [];
  let mode: TcpRelay['mode'] = 'pass';
  let held = 0;
  const open = (client: Socket): void => {
    const upstream = connect(targetPort, '127.0.0.1');
    sockets.add(upstream);
    for (const [one, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      one.pipe(other);
      one.on('error', () => other.destroy());
      one.on('close', () => other.destroy());
    }
  };
  const server = createServer((client) => {
    sockets.add(client);
    client.on('error', () => undefined);
    if (mode === 'refuse') client.destroy();
    else if (mode === 'pass') open(client);
    else {
      held += 1;
      waiting.push(() => open(client));
    }
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    get mode() {
      return mode;
    },
    set mode(next) {
      mode = next;
      // Kept alive for later requests, which would pass.
      if (next !== 'pass') for (const socket of sockets) socket.destroy();
      if (next === 'pass') for (const go of waiting.splice(0)) go();
    },
    get held() {
      return held;
    },
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy();
      server.close();
      await once(server, 'close');
    },
  };
}
