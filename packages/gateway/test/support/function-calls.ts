/** Two gateways that call functions; started before the tests of the file that imports it. */
import { after, before, beforeEach } from 'node:test';
import type { Gateway } from '@releap/gateway';
import { echo, FunctionWorld, key } from './function-world.ts';

export const MAX = 6 * 1024 * 1024;
const stack = new AsyncDisposableStack();
export let world: FunctionWorld;
export let gateway: Gateway;
/** Another one with short deadlines. */
export let hasty: Gateway;

before(async () => {
  world = stack.use(await FunctionWorld.start());
  gateway = await world.gateway();
  hasty = await world.gateway({ queueMs: 2_000, checkMs: 200, thawMs: 200 });
});
after(() => stack.disposeAsync());
beforeEach(() => {
  world.define();
  world.handler = echo;
  world.onSocket = undefined;
  world.allowHalfOpen = false;
  world.decideInstance = () => undefined;
  world.decideFunction = () => ({ function: world.called });
  world.instances.length = 0;
  world.frozen.asked.length = 0;
  world.frozen.before = async () => undefined;
  world.control.asked.length = 0;
  world.control.released.length = 0;
  world.control.discarded.length = 0;
});

type Init = Omit<RequestInit, 'headers'> & { headers?: Record<string, string> };

export const call = (
  body: RequestInit['body'] = null,
  init: Init = {},
  { port } = gateway,
): Promise<Response> =>
  // The name is new with each definition: grants of earlier ones are not used.
  fetch(`http://127.0.0.1:${port}/fns/${world.called.id}/invoke`, {
    method: 'POST',
    body,
    ...init,
    headers: { authorization: `Bearer ${key}`, ...init.headers },
  });

export const shown = ({ status, headers }: Response) => [
  status,
  headers.get('x-rlp-fn-status'),
  headers.get('x-rlp-cold'),
];
export const errorOf = async (response: Response): Promise<[number, string]> => [
  response.status,
  ((await response.json()) as { error: string }).error,
];
