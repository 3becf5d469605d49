/** Plays a gateway: asks a control server for decisions, and records revocations. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import {
  GATEWAY_LINK_PATH,
  GATEWAY_PROTOCOL,
  GatewayControlMessage,
  type GatewayGrant,
} from '@releap/contract';
import { Check } from 'typebox/value';
import { WebSocket } from 'ws';
import { GATEWAY_TOKEN } from './credentials.ts';
import { until } from './eventually.ts';

export type GatewayAnswer = Extract<GatewayControlMessage, { type: 'grant' | 'function' | 'refusal' }>;
type Revoke = Extract<GatewayControlMessage, { type: 'revoke' }>;

/** While a version is tried, each answer takes seconds. */
const TRIES = 24;

/** A gateway's end of its link to the control plane. */
export class GatewayClient implements Disposable {
  readonly revoked: Revoke[] = [];
  /** Functions of which it was asked to end idle instances. */
  readonly pressed: string[] = [];
  /** Instances that it was asked to give up. */
  readonly retired: string[] = [];
  /** Of which it was asked to end those that serve nothing. */
  readonly wanted: { instances: string[]; most: number }[] = [];
  ticks = 0;
  protocol = 0;
  #id = 0;
  readonly #socket: WebSocket;
  readonly #waiting = new Map<number, (answer: GatewayAnswer) => void>();

  constructor(url: string, credential = GATEWAY_TOKEN) {
    this.#socket = new WebSocket(url.replace('http', 'ws') + GATEWAY_LINK_PATH, {
      headers: { authorization: `Bearer ${credential}` },
    });
    this.#socket.on('error', () => undefined);
    this.#socket.on('message', (data) => {
      const message: unknown = JSON.parse((data as Buffer).toString('utf8'));
      assert.ok(Check(GatewayControlMessage, message), 'not a message of the contract');
      if (message.type === 'welcome') this.protocol = message.protocol;
      if (message.type === 'tick') this.ticks += 1;
      if (message.type === 'revoke') this.revoked.push(message);
      if (message.type === 'pressure') {
        this.pressed.push(...message.function_ids);
        this.retired.push(...(message.instances ?? []));
        if (message.idle !== undefined) this.wanted.push(message.idle);
      }
      if (message.type === 'grant' || message.type === 'function' || message.type === 'refusal')
        this.#waiting.get(message.id)?.(message);
    });
  }

  /** @param gatewayId UUID with which it leases instances of functions */
  async open(gatewayId?: string): Promise<this> {
    await once(this.#socket, 'open');
    this.send({
      type: 'hello',
      protocol: GATEWAY_PROTOCOL,
      kinds: ['toolbox'],
      ...(gatewayId === undefined ? {} : { gateway_id: gatewayId }),
    });
    await until(() => this.protocol > 0);
    return this;
  }

  send(message: unknown): void {
    this.#socket.send(JSON.stringify(message));
  }

  async ask(target: object, token?: string): Promise<GatewayAnswer> {
    return this.begin(target, token).answer;
  }

  /** @param id of an earlier request, for a renewal */
  begin(target: object, token?: string, id = ++this.#id): { id: number; answer: Promise<GatewayAnswer> } {
    const answer = new Promise<GatewayAnswer>((resolve) => this.#waiting.set(id, resolve));
    this.send({ type: 'resolve', id, target, ...(token === undefined ? {} : { token }) });
    return { id, answer };
  }

  /** An instance of a function, once it runs; asks again while its version is tried, as gateways do. @throws when it is refused */
  async instance(versionId: string, instance?: string): Promise<GatewayGrant> {
    const target = { kind: 'function-instance', version_id: versionId, ...(instance && { instance }) };
    for (let tries = 1; ; tries += 1) {
      const answer = await this.ask(target);
      if (answer.type === 'grant') return answer;
      const isTried = answer.type === 'refusal' && answer.not_tried_yet === true;
      if (!isTried || tries === TRIES) assert.fail(JSON.stringify(answer));
    }
  }

  release(ids: readonly number[], discard = false): void {
    this.send({ type: 'release', ids, ...(discard ? { discard } : {}) });
  }

  async resolve(sandbox: string, token: string): Promise<GatewayAnswer> {
    return this.ask({ kind: 'toolbox', sandbox }, token);
  }

  async grant(sandbox: string, token: string): Promise<GatewayGrant> {
    const answer = await this.resolve(sandbox, token);
    if (answer.type !== 'grant') assert.fail(JSON.stringify(answer));
    return answer;
  }

  /** @throws when it is not a refusal */
  async refusal(sandbox: string, token: string): Promise<{ status: number; error: string }> {
    const answer = await this.resolve(sandbox, token);
    if (answer.type !== 'refusal') assert.fail(JSON.stringify({ ...answer, data_token: '' }));
    return answer;
  }

  revokedAs(id: number): boolean | undefined {
    return this.revoked.find(({ ids }) => ids.includes(id))?.disconnect;
  }

  [Symbol.dispose](): void {
    this.#socket.terminate();
  }
}
