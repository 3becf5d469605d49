/**
 * A cloud whose guests cost no processor: the real control plane, database and gateway, and a host of the real protocol that takes a
 * fixed time for each start, build and call. So what organizations compete for is places, and not the cores of the machine that measures.
 */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { newUuid } from '@releap/contract';
import { mintApiKey } from '@releap/control';
import { startPostgres } from '@releap/database';
import { startGateway } from '@releap/gateway';
import { AddressStreams, registerIdle, registerPortStreams, startDataServer } from '@releap/runner/data';
import { caller, type Caller } from '@releap/testing/callers';
import { credentialOf, dataKeyOf, GATEWAY_TOKEN, opens } from '@releap/testing/credentials';
import { quiet } from '@releap/testing/logging';
import { freePort } from '@releap/testing/ports';
import { obedient, ScriptedRunner } from '@releap/testing/scripted-runner';
import { fresh } from '../api/many-sandboxes.ts';
import { Server } from '../api/server.ts';

export const HOST = { cores: 8, bootMs: 100, buildMs: 200, callMs: 20 };
/** Builds of a project have a bound of their own; this many projects reach that of an organization. */
const PROJECTS = 4;

export interface Organization {
  /** One for each project. */
  projects: Caller[];
  /** Of the first project, through the gateway. */
  gateway: Caller;
}

export interface ModelCloud extends AsyncDisposable {
  /** Where handlers of functions listen. */
  handlerPort: number;
  organization(): Promise<Organization>;
}

export async function startModelCloud(folder: string): Promise<ModelCloud> {
  await using stack = new AsyncDisposableStack();
  const postgres = stack.use(await startPostgres({ dir: join(folder, 'postgres'), log: quiet }));
  const database = stack.use(await fresh(postgres, 'cloud'));
  const port = await freePort();
  const gatewayUrl = `http://127.0.0.1:${port}`;
  const control = stack.use(
    await Server.start('../tenancy/control-server.ts', [database.url, gatewayUrl, join(folder, 'store')]),
  );
  const { url, internalUrl = '' } = control.ready;

  const handler = createServer((request, response) => {
    request.resume().on('end', () => setTimeout(() => response.end('{}'), HOST.callMs));
  }).listen(0, '127.0.0.1');
  await once(handler, 'listening');
  stack.defer(() => {
    handler.close();
    handler.closeAllConnections();
  });

  const id = randomUUID();
  const streams = new AddressStreams(undefined);
  const find = () => ({
    address: '127.0.0.1',
    guest: () => Promise.reject(new Error('there is no guest')),
  });
  let key: ReturnType<typeof dataKeyOf> | undefined;
  const data = await startDataServer({
    socketPath: join(folder, 'data.sock'),
    verify: async (token, uuid) =>
      opens(await (key ??= dataKeyOf(internalUrl, credentialOf(id))), token, id, uuid),
    register: (app) => {
      registerPortStreams(app, find);
      streams.register(app, find);
      registerIdle(app, () => ({ freeze: async () => undefined, thaw: async () => undefined }));
    },
    log: quiet,
  });
  stack.defer(() => data.close());
  stack.use(
    await ScriptedRunner.start(() => internalUrl, {
      id,
      hello: { data_url: data.url },
      facts: { cores: HOST.cores },
      async script(assignment, runner) {
        if (assignment.desired === 'running') await sleep(HOST.bootMs);
        const newest = runner.assignments.get(assignment.vm_id);
        if (newest?.generation === assignment.generation) await obedient(assignment, runner);
      },
      build(job, runner) {
        const done = { manifest_name: `sha256:${'cd'.repeat(32)}`, layer_count: 1, bytes: 4096 };
        setTimeout(() => runner.built(job, done), HOST.buildMs);
      },
    }),
  );
  const gateway = await startGateway({
    listen: { host: '127.0.0.1', port },
    controlUrl: internalUrl,
    credential: () => Promise.resolve(GATEWAY_TOKEN),
    log: quiet,
    limits: { graceMs: 100 },
  });
  stack.defer(() => gateway.close());

  const owned = stack.move();
  return {
    handlerPort: (handler.address() as AddressInfo).port,
    async organization() {
      const orgId = newUuid();
      await database.pool.query('insert into organizations (id, name) values ($1, $2)', [orgId, orgId]);
      const projects = await Promise.all(
        Array.from({ length: PROJECTS }, async () => {
          const projectId = newUuid();
          await database.pool.query('insert into projects (id, org_id, name) values ($1, $2, $3)', [
            projectId,
            orgId,
            projectId,
          ]);
          const { token } = await mintApiKey(database.pool, projectId);
          return caller(() => url, token, projectId);
        }),
      );
      const [first] = projects;
      if (first === undefined) throw new Error('an organization has a project');
      return { projects, gateway: caller(() => gatewayUrl, first.key, first.projectId) };
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}
