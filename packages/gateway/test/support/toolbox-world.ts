/** A gateway, a runner's data server and a real agent; started before the tests of the file that imports it. */
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before } from 'node:test';
import { newToken, newUuid } from '@releap/contract';
import { LogFile, registerPortStreams, registerToolbox, startDataServer } from '@releap/runner/data';
import { log, startAgent, type TestAgent } from '@releap/testing/guest-agent';
import { childrenOf } from '@releap/testing/processes';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { type Gateway, startGateway } from '../../src/index.ts';
import { startFakeControl } from './fake-control.ts';

const CREDENTIAL = 'gateway-credential';
export const DATA_TOKEN = 'data-token';
export const key = newToken('apiKey');
export const box = newUuid();

/** Runs until a file appears in its working directory. */
const ENTRYPOINT = 'echo up; until [ -e end ]; do sleep 0.05; done; echo down >&2; exit 3';

const stack = new AsyncDisposableStack();
export let agent: TestAgent;
export let gateway: Gateway;
/** Where the files of a test are. */
export let folder: string;

before(async () => {
  agent = stack.use(await startAgent());
  const guest = await agent.connect();
  folder = await temporaryFolder('releap-toolbox-');
  stack.defer(() => rm(folder, { recursive: true, force: true }));
  const entrypoint = new LogFile(join(folder, 'entrypoint.log'));
  stack.defer(() => entrypoint.close());
  guest.onEntrypointOutput(({ data }) => entrypoint.write(data));
  await guest.configure({
    hostname: 'box',
    machineId: '0'.repeat(32),
    env: { GREETING: 'hello' },
    workingDir: agent.folder,
    user: '0',
    entrypoint: { argv: ['/bin/sh', '-c', ENTRYPOINT] },
  });
  const data = await startDataServer({
    socketPath: join(folder, 'data.sock'),
    verify: async (token) => token === DATA_TOKEN,
    register: async (app) => {
      registerPortStreams(app, (id) =>
        id === box ? { address: '127.0.0.2', guest: async () => guest } : undefined,
      );
      await registerToolbox(app, {
        lookup: (id) => (id === box ? guest : undefined),
        entrypointLog: () => entrypoint,
        log,
      });
    },
    log,
  });
  stack.defer(() => data.close());
  const control = stack.use(await startFakeControl(CREDENTIAL, DATA_TOKEN));
  control.decide = ({ target: { sandbox }, token }) => {
    if (token !== key) return { status: 401, error: 'invalid credentials' };
    return sandbox === box
      ? { vm_id: box, data_url: data.url }
      : { status: 404, error: `sandbox "${sandbox}" not found` };
  };
  gateway = await startGateway({
    listen: { host: '127.0.0.1', port: 0 },
    controlUrl: control.url,
    credential: async () => CREDENTIAL,
    log,
    limits: { graceMs: 100 },
  });
  stack.defer(() => gateway.close());
});
after(() => stack.disposeAsync());

export const url = (tail: string, sandbox = box): string =>
  `http://127.0.0.1:${gateway.port}/toolbox/${sandbox}/${tail}`;
export const authorization = { authorization: `Bearer ${key}` };

export interface Answer<T> {
  status: number;
  body: T;
  text: string;
}

export async function call<T = Record<string, unknown>>(
  method: string,
  tail: string,
  body?: FormData | object,
): Promise<Answer<T>> {
  const form = body instanceof FormData;
  const response = await fetch(url(tail), {
    method,
    headers: {
      ...authorization,
      // As SDKs send a request without a body.
      ...(form ? {} : { 'content-type': body ? 'application/json' : 'application/x-www-form-urlencoded' }),
    },
    ...(body === undefined ? {} : { body: form ? body : JSON.stringify(body) }),
  });
  const text = await response.text();
  const isJson = response.headers.get('content-type')?.startsWith('application/json') === true;
  return { status: response.status, body: (isJson ? JSON.parse(text) : {}) as T, text };
}

export function form(
  files: readonly (readonly [path: string, content: string | Uint8Array<ArrayBuffer>])[],
): FormData {
  const data = new FormData();
  for (const [index, [path, content]] of files.entries()) {
    data.append(`files[${index}].path`, path);
    data.append(`files[${index}].file`, new Blob([content]), 'name');
  }
  return data;
}

/** The processes of the daemon: one, or none. */
export async function daemons(): Promise<number[]> {
  const children = await childrenOf(agent.pid);
  const names = await Promise.all(
    children.map((pid) => readFile(`/proc/${pid}/comm`, 'utf8').catch(() => '')),
  );
  return children.filter((_, index) => names[index]?.trim() === 'toolboxd');
}
