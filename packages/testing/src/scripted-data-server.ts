/** The data server of a scripted runner: it serves logs, and accepts connections to ports of sandboxes. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { PORT_STREAM_PROTOCOL } from '@releap/contract';
import { credentialOf, dataKeyOf, opens } from './credentials.ts';

export class ScriptedDataServer {
  /** Answers; by path. */
  readonly logs = new Map<string, (request: IncomingMessage, response: ServerResponse) => void>();
  /** Sandboxes whose ports accept no connections; those of others do, and are closed at once. */
  readonly deaf = new Set<string>();
  readonly #runnerId: string;
  readonly #base: () => string;
  readonly #server: Server;

  /** @param base URL of the control plane */
  constructor(runnerId: string, base: () => string) {
    this.#runnerId = runnerId;
    this.#base = base;
    this.#server = createServer((request, response) => {
      this.#answer(request, response).catch(() => response.destroy());
    });
    this.#server.on('upgrade', (request, socket) => {
      const subject = /^\/vms\/([^/]+)\/ports\//.exec(request.url ?? '')?.[1] ?? '';
      socket.on('error', () => undefined);
      socket.end(
        this.deaf.has(subject)
          ? 'HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n'
          : `HTTP/1.1 101 Switching Protocols\r\nupgrade: ${PORT_STREAM_PROTOCOL}\r\nconnection: Upgrade\r\n\r\n`,
      );
    });
  }

  async listen(): Promise<void> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve));
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  stop(): void {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const handler = this.logs.get(request.url ?? '');
    const token = /^Bearer (.*)$/.exec(request.headers.authorization ?? '')?.[1] ?? '';
    const subject = /^\/(?:vms|builds)\/([^/]+)\//.exec(request.url ?? '')?.[1] ?? '';
    const key = await dataKeyOf(this.#base(), credentialOf(this.#runnerId));
    if (!(await opens(key, token, this.#runnerId, subject))) response.writeHead(401).end();
    else if (handler === undefined) response.writeHead(404).end('{"error":"no log"}');
    else handler(request, response);
  }
}
