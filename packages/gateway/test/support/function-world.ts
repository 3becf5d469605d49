/** Functions whose instances are servers of this machine, each at a loopback address of its own. */
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import net from 'node:net';
import { join } from 'node:path';
import { badGateway, conflict, type GatewayFunction, newToken, newUuid } from '@releap/contract';
import { type Gateway, type GatewayOptions, startGateway } from '@releap/gateway';
import { AddressStreams, registerIdle, registerPortStreams, startDataServer } from '@releap/runner/data';
import { quiet } from '@releap/testing/logging';
import { freePort } from '@releap/testing/ports';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { type Decision, type FakeControl, type Question, startFakeControl } from './fake-control.ts';

const CREDENTIAL = 'the-credential-of-this-gateway';
const DATA_TOKEN = 'data-token';
export const key = newToken('apiKey');

export interface TestInstance {
  readonly id: string;
  /** What the handler was sent. */
  readonly seen: IncomingMessage[];
  /** Ends it, as the end of its sandbox does. */
  kill(): Promise<void>;
}

/** Plays the part of the runner that stops and resumes instances. */
export class FrozenInstances {
  /** Instances that are stopped. */
  readonly now = new Set<string>();
  /** Requests, oldest first. */
  readonly asked: string[] = [];
  /** What happens before a request is done. */
  before: (operation: 'freeze' | 'thaw', vmId: string) => Promise<void> = async () => undefined;
  readonly #turns = new Map<string, string>();

  of(vmId: string): { freeze(turn: string): Promise<void>; thaw(turn: string): Promise<void> } {
    const begin = async (operation: 'freeze' | 'thaw'): Promise<void> => {
      this.asked.push(`${operation} ${vmId}`);
      await this.before(operation, vmId);
    };
    return {
      freeze: async (turn) => {
        await begin('freeze');
        if ((this.#turns.get(vmId) ?? turn) !== turn) throw conflict('the sandbox was thawed since');
        this.now.add(vmId);
      },
      thaw: async (turn) => {
        await begin('thaw');
        this.#turns.set(vmId, turn);
        this.now.delete(vmId);
      },
    };
  }
}

export type Handler = (request: IncomingMessage, response: ServerResponse, instance: TestInstance) => void;

export class FunctionWorld implements AsyncDisposable {
  readonly control: FakeControl;
  readonly port: number;
  readonly instances: TestInstance[] = [];
  called: GatewayFunction;
  handler: Handler = echo;
  /** Serves raw connections instead. */
  onSocket: ((socket: net.Socket) => void) | undefined;
  /** These stay open when the gateway ends its half. */
  allowHalfOpen = false;
  /** Of a request for an instance; undefined for a new one. */
  decideInstance: (question: Question) => Decision | Promise<Decision> | undefined = () => undefined;
  readonly #dataUrl: string;
  readonly #addresses: Map<string, string>;
  readonly frozen: FrozenInstances;
  readonly #stack: AsyncDisposableStack;

  private constructor(
    parts: {
      control: FakeControl;
      port: number;
      dataUrl: string;
      addresses: Map<string, string>;
      frozen: FrozenInstances;
    },
    stack: AsyncDisposableStack,
  ) {
    this.control = parts.control;
    this.port = parts.port;
    this.#dataUrl = parts.dataUrl;
    this.#addresses = parts.addresses;
    this.frozen = parts.frozen;
    this.#stack = stack;
    this.called = this.define();
    this.control.decide = (question) => this.#decide(question);
  }

  static async start(): Promise<FunctionWorld> {
    await using stack = new AsyncDisposableStack();
    const folder = await temporaryFolder('releap-functions-');
    stack.defer(() => rm(folder, { recursive: true, force: true }));
    const addresses = new Map<string, string>();
    const streams = new AddressStreams(undefined);
    const frozen = new FrozenInstances();
    const find = (vmId: string) => {
      const address = addresses.get(vmId);
      if (address === undefined) return undefined;
      const dial = async () => {
        throw badGateway('nothing listens');
      };
      return { address, guest: async () => ({ dial, toolbox: dial }) };
    };
    const data = await startDataServer({
      socketPath: join(folder, 'data.sock'),
      verify: async (shown) => shown === DATA_TOKEN,
      register: (app) => {
        registerPortStreams(app, find);
        streams.register(app, find);
        registerIdle(app, (vmId) => frozen.of(vmId));
      },
      log: quiet,
    });
    stack.defer(() => data.close());
    const control = stack.use(await startFakeControl(CREDENTIAL, DATA_TOKEN));
    const port = await freePort();
    return new FunctionWorld({ control, port, dataUrl: data.url, addresses, frozen }, stack.move());
  }

  define(settings: Partial<GatewayFunction> = {}): GatewayFunction {
    this.called = {
      id: newUuid(),
      project_id: newUuid(),
      name: 'hello',
      version_id: newUuid(),
      version: 1,
      port: this.port,
      timeout_s: 60,
      scaledown_window_s: 60,
      max_concurrency: 1,
      max_instances: null,
      revision: 1,
      ...settings,
    };
    return this.called;
  }

  async gateway(
    functions: GatewayOptions['functions'] = {},
    limits: GatewayOptions['limits'] = {},
  ): Promise<Gateway> {
    const gateway = await startGateway({
      listen: { host: '127.0.0.1', port: 0 },
      controlUrl: this.control.url,
      credential: async () => CREDENTIAL,
      functions,
      log: quiet,
      limits: { graceMs: 100, ...limits },
    });
    this.#stack.defer(() => gateway.close());
    return gateway;
  }

  /** Requests for instances, without renewals. */
  get starts(): Question[] {
    return this.control.asked.filter(
      ({ target }) => target.kind === 'function-instance' && target.instance === undefined,
    );
  }

  async startInstance(): Promise<Decision> {
    const id = newUuid();
    const address = this.#place(id);
    const seen: IncomingMessage[] = [];
    const { onSocket } = this;
    const serve = (request: IncomingMessage, response: ServerResponse): void => {
      seen.push(request);
      response.on('error', () => undefined);
      this.handler(request, response, instance);
    };
    const server =
      onSocket === undefined
        ? http.createServer(serve)
        : net.createServer({ allowHalfOpen: this.allowHalfOpen }, onSocket);
    const open = new Set<net.Socket>();
    server.on('connection', (socket: net.Socket) => {
      open.add(socket);
      socket.on('error', () => undefined).on('close', () => open.delete(socket));
    });
    const kill = async (): Promise<void> => {
      if (!server.listening) return;
      server.close();
      for (const socket of open) socket.destroy();
      await once(server, 'close');
    };
    const instance: TestInstance = { id, seen, kill };
    server.listen(this.port, address);
    await once(server, 'listening');
    this.#stack.defer(kill);
    this.instances.push(instance);
    return { vm_id: id, data_url: this.#dataUrl };
  }

  /** The same instance, for another gateway. */
  again({ id }: TestInstance): Decision {
    return { vm_id: id, data_url: this.#dataUrl };
  }

  /** A sandbox in which nothing listens. */
  deafInstance(): Decision {
    const id = newUuid();
    this.#place(id);
    return { vm_id: id, data_url: this.#dataUrl };
  }

  #place(id: string): string {
    const address = `127.0.2.${this.#addresses.size + 1}`;
    this.#addresses.set(id, address);
    return address;
  }

  async #decide(question: Question): Promise<Decision> {
    const { kind, instance } = question.target;
    if (kind === 'function') return this.decideFunction(question);
    const decided = await this.decideInstance(question);
    if (decided !== undefined) return decided;
    if (instance !== undefined) return { vm_id: instance, data_url: this.#dataUrl };
    return await this.startInstance();
  }

  decideFunction: (question: Question) => Decision = () => ({ function: this.called });

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack.disposeAsync();
  }
}

export const echo: Handler = (request, response) => {
  response.setHeader('x-handler', 'yes');
  request.pipe(response);
};
