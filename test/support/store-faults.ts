/** Between the host's store proxy and an S3 server: fails as it is told. */
import { once } from 'node:events';
import {
  createServer,
  type IncomingMessage,
  request as httpRequest,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { AddressInfo } from 'node:net';

/** What happens to requests of one object, by its key. */
export type ObjectFault =
  /** Requests of it get this error. */
  | { status: number; code: string }
  /** Lists say that it has so many bytes. */
  | { listed: number }
  /** Only a half of each body is sent, and then the connection ends. */
  | 'half'
  /** Bytes that no one has asked for follow each body. */
  | 'more'
  /** The first answer is silent after a half of its body. */
  | 'stall';

export class StoreFaults {
  /** `busy`: every request gets 503. */
  mode: 'pass' | 'hang' | 'busy' = 'pass';
  readonly objects = new Map<string, ObjectFault>();
  /** Requests with another session token are refused; those without one are not. */
  token: string | undefined;
  /** Keys of objects of which an answer is silent. */
  readonly stalled: string[] = [];
  readonly #server: Server;
  readonly #upstream: string;

  constructor(upstream: string) {
    this.#upstream = upstream;
    this.#server = createServer((request, response) => {
      request.on('error', () => undefined);
      if (this.mode === 'hang') return;
      if (this.mode === 'busy') return fail(response, { status: 503, code: 'SlowDown' });
      const token = request.headers['x-amz-security-token'];
      if (token !== undefined && token !== this.token)
        return fail(response, { status: 400, code: 'ExpiredToken' });
      const key = decodeURIComponent(new URL(request.url ?? '/', this.#upstream).pathname.slice(1));
      const fault = this.objects.get(key.slice(key.indexOf('/') + 1));
      if (typeof fault === 'object' && 'status' in fault) return fail(response, fault);
      this.#forward(request, response, key, request.method === 'GET' ? fault : undefined);
    });
  }

  /** @returns its endpoint */
  async listen(): Promise<string> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  close(): void {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  #forward(
    request: IncomingMessage,
    response: ServerResponse,
    key: string,
    fault: ObjectFault | undefined,
  ): void {
    const { method, headers } = request;
    const onward = httpRequest(new URL(request.url ?? '/', this.#upstream), { method, headers });
    onward.on('error', () => response.destroy());
    request.pipe(onward);
    onward.on('response', (answer) => {
      answer.on('error', () => response.destroy());
      const isList = method === 'GET' && !/^[^/]+\/./.test(key);
      if (fault === undefined && !isList) {
        response.writeHead(answer.statusCode ?? 502, answer.headers);
        answer.pipe(response);
      } else {
        void answer.toArray().then(
          (parts: Buffer[]) => this.#send(response, answer, Buffer.concat(parts), key, fault),
          () => response.destroy(),
        );
      }
    });
  }

  #send(
    response: ServerResponse,
    answer: IncomingMessage,
    body: Buffer,
    key: string,
    fault: ObjectFault | undefined,
  ): void {
    const { statusCode = 502, headers } = answer;
    if (fault === undefined) {
      const list = this.#lying(body.toString());
      response.writeHead(statusCode, { ...headers, 'content-length': Buffer.byteLength(list) });
      return void response.end(list);
    }
    response.writeHead(statusCode, headers);
    if (fault === 'more') {
      const { socket } = response;
      return void response.end(body, () => socket?.write('more than that'));
    }
    response.write(body.subarray(0, body.length / 2), () => {
      if (fault === 'half') response.destroy();
      else {
        this.objects.delete(key.slice(key.indexOf('/') + 1));
        this.stalled.push(key);
      }
    });
  }

  /** A list of objects with the sizes that it shall have. */
  #lying(list: string): string {
    return list.replaceAll(/<Contents>.*?<\/Contents>/gs, (entry) => {
      const fault = this.objects.get(/<Key>(.*?)<\/Key>/.exec(entry)?.[1] ?? '');
      return typeof fault === 'object' && 'listed' in fault
        ? entry.replace(/<Size>\d+<\/Size>/, `<Size>${fault.listed}</Size>`)
        : entry;
    });
  }
}

function fail(response: ServerResponse, { status, code }: { status: number; code: string }): void {
  response.writeHead(status).end(`<Error><Code>${code}</Code><Message>m</Message></Error>`);
}
