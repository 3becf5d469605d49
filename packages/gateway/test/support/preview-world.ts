/** Previews of a server of this machine: a gateway with the engine in front, a runner's data server, a scripted control plane. */
import { once } from 'node:events';
import { chmod, rm } from 'node:fs/promises';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { join } from 'node:path';
import { newToken } from '@releap/contract';
import { type EngineOptions, type Gateway, type GatewayOptions, startGateway } from '@releap/gateway';
import { AddressStreams, registerPortStreams, startDataServer } from '@releap/runner/data';
import { log, startAgent } from '@releap/testing/guest-agent';
import { freePort } from '@releap/testing/ports';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { WebSocketServer } from 'ws';
import { AdminSocket } from '../../src/engine/admin-socket.ts';
import { parseServers } from '../../src/engine/lanes.ts';
import { type FakeControl, startFakeControl } from './fake-control.ts';

const CREDENTIAL = 'the-credential-of-this-gateway';
export const DATA_TOKEN = 'data-token';
/** No user of the machine. */
const UID = 0x7080_0001;
export const DOMAIN = 'preview.test';
export const token = newToken('preview');
export const key = newToken('apiKey');

export class PreviewWorld implements AsyncDisposable {
  readonly control: FakeControl;
  readonly addresses: AddressStreams;
  /** Of the server in the guest. */
  readonly port: number;
  readonly folder: string;
  readonly #dataUrl: string;
  readonly #stack: AsyncDisposableStack;
  /** What the server was sent. */
  seen: IncomingMessage[] = [];
  serve: (request: IncomingMessage, response: ServerResponse) => void = () => undefined;

  private constructor(
    parts: { control: FakeControl; addresses: AddressStreams; port: number; folder: string; dataUrl: string },
    stack: AsyncDisposableStack,
  ) {
    this.control = parts.control;
    this.addresses = parts.addresses;
    this.port = parts.port;
    this.folder = parts.folder;
    this.#dataUrl = parts.dataUrl;
    this.#stack = stack;
  }

  /** @param throughAgent the server is reached through the agent of its guest alone, as one that listens on loopback */
  static async start({ throughAgent = false } = {}): Promise<PreviewWorld> {
    await using stack = new AsyncDisposableStack();
    const agent = stack.use(await startAgent());
    const guest = await agent.connect();
    const folder = await temporaryFolder('releap-engine-');
    stack.defer(() => rm(folder, { recursive: true, force: true }));
    await chmod(folder, 0o700);
    const addresses = new AddressStreams(UID);
    const find = (vmId: string) => ({
      // Nothing listens at the second: all goes through the agent.
      address: throughAgent || vmId === 'inside' ? '127.0.0.99' : '127.0.0.1',
      guest: async () => guest,
    });
    const data = await startDataServer({
      socketPath: join(folder, 'data.sock'),
      verify: async (shown) => shown === DATA_TOKEN,
      register: (app) => {
        registerPortStreams(app, find);
        addresses.register(app, find);
      },
      log,
    });
    stack.defer(() => data.close());
    const server = http.createServer((request, response) => {
      world.seen.push(request);
      world.serve(request, response);
    });
    const sockets = new WebSocketServer({ server });
    sockets.on('connection', (socket, request) => {
      world.seen.push(request);
      socket.on('message', (message, isBinary) => socket.send(message, { binary: isBinary }));
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    stack.defer(() => {
      server.close();
      server.closeAllConnections();
      for (const socket of sockets.clients) socket.terminate();
    });
    const control = stack.use(await startFakeControl(CREDENTIAL, DATA_TOKEN));
    const { port } = server.address() as AddressInfo;
    const world = new PreviewWorld({ control, addresses, port, folder, dataUrl: data.url }, stack.move());
    return world;
  }

  reset(): void {
    this.seen = [];
    this.serve = (request, response) => {
      response.setHeader('x-guest', 'yes');
      request.pipe(response);
    };
    this.control.asked = [];
    this.control.decide = ({ target: { sandbox = '' }, token: shown }) => {
      if (sandbox === 'unknown') return { status: 404, error: 'there is no preview' };
      if (sandbox === 'paused') return { status: 409, error: 'it is paused, and must be running' };
      if (sandbox.startsWith('private') && shown !== token && shown !== key)
        return { status: 401, error: 'this preview is private' };
      return { vm_id: sandbox, data_url: this.#dataUrl, public: !sandbox.startsWith('private') };
    };
  }

  /** @param name of the folder of its engine; without one it has none */
  async gateway(
    name?: string,
    previews: Partial<GatewayOptions['previews']> = {},
    limits: GatewayOptions['limits'] = {},
  ): Promise<Gateway> {
    const gateway = await startGateway({
      listen: { host: '127.0.0.1', port: 0 },
      controlUrl: this.control.url,
      credential: async () => CREDENTIAL,
      previews: {
        domain: DOMAIN,
        isTls: false,
        ...(name === undefined
          ? {}
          : { listen: { host: '127.0.0.1', port: await freePort() }, engine: this.engine(name) }),
        ...previews,
      },
      log,
      limits: { graceMs: 100, ...limits },
    });
    this.#stack.defer(() => gateway.close());
    return gateway;
  }

  engine(name: string): EngineOptions {
    return { folder: join(this.folder, name), uid: UID, lanes: 8 };
  }

  hostOf(sandbox: string, port = this.port): string {
    return `${port}-${sandbox}.${DOMAIN}`;
  }

  /** Requests that went from the engine straight to the server. */
  async routed(name: string): Promise<number> {
    const csv = await new AdminSocket(join(this.folder, name, 'admin.sock')).run('show stat guests 4 -1');
    return [...parseServers(csv)].reduce(
      (sum, [server, { total }]) => sum + (server === 'gateway' ? 0 : total),
      0,
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack.disposeAsync();
  }
}

/** Sends text over a connection. @returns all that was answered until its end */
export async function raw(port: number, text: string): Promise<string> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => undefined);
  socket.write(text);
  let said = '';
  socket.on('data', (chunk) => (said += String(chunk)));
  await once(socket, 'close');
  return said;
}
