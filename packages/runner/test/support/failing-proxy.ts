/** Forwards requests to a control plane or a store, apart from those that are to fail. */
import { once } from 'node:events';
import { createServer, request, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/**
 * A status to answer with; `lost`: it is forwarded, and the connection breaks in place of the answer; `silent`: it is neither read
 * nor answered.
 */
export type Failure = number | 'lost' | 'silent';

export class FailingProxy {
  readonly #server: Server;
  readonly #target: () => string;
  /** Which requests fail; none without it. */
  answer: ((asked: IncomingMessage) => Failure | undefined) | undefined;

  private constructor(target: () => string) {
    this.#target = target;
    this.#server = createServer((asked, answer) => this.#serve(asked, answer));
  }

  static async start(target: () => string): Promise<FailingProxy> {
    const proxy = new FailingProxy(target);
    proxy.#server.listen(0, '127.0.0.1');
    await once(proxy.#server, 'listening');
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }

  #serve(asked: IncomingMessage, answer: ServerResponse): void {
    const failure = this.answer?.(asked);
    if (failure === 'silent') return;
    if (typeof failure === 'number') {
      asked.resume();
      answer.writeHead(failure, { 'content-type': 'application/json' });
      answer.end(JSON.stringify({ error: `the test answers ${failure}` }));
      return;
    }
    const forwarded = request(new URL(asked.url ?? '/', this.#target()), {
      method: asked.method,
      headers: asked.headers,
    });
    asked.pipe(forwarded);
    forwarded.once('error', () => answer.destroy());
    forwarded.once('response', (response) => {
      if (failure === 'lost') {
        response.resume().once('end', () => answer.destroy());
        return;
      }
      answer.writeHead(response.statusCode ?? 502, response.headers);
      response.pipe(answer);
      // Breaks off the answer where the target does.
      response.once('close', () => {
        if (!response.complete) answer.destroy();
      });
    });
  }
}
