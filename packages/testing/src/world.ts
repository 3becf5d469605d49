/** What the tests of the control plane share: a server on a fresh database, its callers and its scripted runners. */
import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { LIMITS, newUuid, type HostRecord, type SandboxRecord } from '@releap/contract';
import {
  ensureBootstrap,
  mintApiKey,
  startControl,
  type Control,
  type ControlOptions,
} from '@releap/control';
import { isDatabaseUnavailable, openDatabase, type Database } from '@releap/database';
import { caller, refusalOf, sharedText, untilAnswered, type Caller } from './callers.ts';
import { GATEWAY_TOKEN, OPERATOR_TOKEN, TOKENS } from './credentials.ts';
import { PATIENCE_MS, until } from './eventually.ts';
import { inspect } from './inspect.ts';
import { quiet } from './logging.ts';
import { freePort } from './ports.ts';
import { endFirst, freshDatabase } from './postgres.ts';
import { REGION } from './scripted-host.ts';
import { ScriptedRunner, type RunnerOptions } from './scripted-runner.ts';

export { caller, PATIENCE_MS, quiet, refusalOf, sharedText, until, untilAnswered };
export type { Answer, Caller } from './callers.ts';
export type {
  Assignment,
  BuildJob,
  Observation,
  SnapshotAssignment,
  SnapshotObservation,
} from './runner-messages.ts';
export { CAPTURED, CAPTURED_MEMORY, FACTS, REGION } from './scripted-host.ts';
export * from './scripted-runner.ts';

const BURSTABLE = { cpu: 8, mem: 4, disk: 4, tier: 'burstable' } as const;

export interface World extends AsyncDisposable {
  control: Control;
  database: Database;
  url: string;
  internalUrl: string;
  /** With the default project's key. */
  call: Caller;
  /** The organization of the default project. */
  orgId: string;
  /** With the operator's token, on the internal listener. */
  operator: Caller;
  /** With the token of gateways, on the internal listener. */
  gateway: Caller;
  /** With the key of a project of its own, in an organization of its own if none is given. */
  stranger(orgId?: string): Promise<Caller>;
  runner(options?: Partial<RunnerOptions>): Promise<ScriptedRunner>;
  /** Ends the control server and starts another on the same database, and on the same ports if they are still free. */
  restart(options?: Partial<ControlOptions>): Promise<void>;
  /** A second server on the same database. */
  another(options?: Partial<ControlOptions>): Promise<Control>;
}

export async function startWorld(options: Partial<ControlOptions> = {}): Promise<World> {
  const databaseUrl = options.databaseUrl ?? (await freshDatabase());
  const storeFolder = join(tmpdir(), `releap-store-${newUuid()}`);
  const all = (extra: Partial<ControlOptions>): ControlOptions => ({
    databaseUrl,
    databaseConnections: 6,
    listen: { host: '127.0.0.1', port: 0 },
    tokens: TOKENS,
    region: {
      id: REGION,
      name: 'Here',
      toolboxProxyUrl: 'http://127.0.0.1:1/',
      previewUrl: 'https://preview.test',
    },
    builtinImages: ['busybox'],
    store: { type: 'folder', path: storeFolder },
    log: quiet,
    ...options,
    ...extra,
    // As on a machine of one's own: scripted hosts take as many sandboxes as a test likes.
    limits: { sweepMs: 100, overcommit: BURSTABLE, ...options.limits, ...extra.limits },
  });
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => rm(storeFolder, { recursive: true, force: true }));
  // Not chosen by the kernel: while a server restarts, it would give its ports to other processes.
  const listen = async () => ({ host: '127.0.0.1', port: await freePort() });
  const ports = { listen: await listen(), internalListen: await listen() };
  const world = { control: await startControl(all(ports)) };
  cleanup.defer(() => world.control.close());
  const database = openDatabase({ url: databaseUrl, log: quiet, connections: 3 });
  cleanup.use(database);
  cleanup.defer(() => checkAllocations(database));
  const bootstrap = await ensureBootstrap(database, { keyName: 'default' });
  const base = (): string => world.control.url;
  const owned = cleanup.move();
  endFirst.use(owned);
  return Object.assign(world, {
    database,
    get url() {
      return world.control.url;
    },
    get internalUrl() {
      return world.control.internalUrl;
    },
    call: caller(base, bootstrap.apiKey, bootstrap.projectId),
    orgId: bootstrap.orgId,
    operator: caller(() => world.control.internalUrl, OPERATOR_TOKEN, ''),
    gateway: caller(() => world.control.internalUrl, GATEWAY_TOKEN, ''),
    async stranger(ofOrg?: string) {
      const [orgId, projectId] = [ofOrg ?? newUuid(), newUuid()];
      if (ofOrg === undefined)
        await database.pool.query('insert into organizations (id, name) values ($1, $2)', [orgId, orgId]);
      await database.pool.query('insert into projects (id, org_id, name) values ($1, $2, $3)', [
        projectId,
        orgId,
        projectId,
      ]);
      const key = await mintApiKey(database.pool, projectId);
      return caller(base, key.token, projectId);
    },
    async runner(runnerOptions: Partial<RunnerOptions> = {}) {
      const runner = await ScriptedRunner.start(() => world.control.internalUrl, {
        noticed: (id) =>
          until(async () => {
            const asked = database.pool.query(`select 1 from runners where id = $1 and status = 'online'`, [
              id,
            ]);
            // At the end of a file its database may be gone first.
            return asked.then(
              ({ rowCount }) => rowCount === 0,
              () => true,
            );
          }),
        ...runnerOptions,
      });
      owned.use(runner);
      return runner;
    },
    async restart(extra: Partial<ControlOptions> = {}) {
      const { port, internalPort } = world.control;
      await world.control.close();
      const same = {
        listen: { host: '127.0.0.1', port },
        internalListen: { host: '127.0.0.1', port: internalPort },
      };
      world.control = await startControl(all({ ...extra, ...same })).catch((error: unknown) => {
        // The kernel has given one of the ports to another process. Callers and scripted runners ask for the address each time.
        if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error;
        return startControl(all(extra));
      });
    },
    async another(extra: Partial<ControlOptions> = {}) {
      const control = await startControl(all(extra));
      owned.use(control);
      return control;
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  });
}

export interface Created {
  id: string;
  uuid: string;
  token: string;
  jobId: string;
}

export async function create(call: Caller, world: World, body: object = {}): Promise<Created> {
  const answer = await call('POST', '/vms', { image: 'busybox', ...body });
  assert.equal(answer.status, 200, answer.text);
  const { id: uuid } = await inspect(world.database, { jobId: answer.body.job_id });
  return {
    id: answer.body.vm_id,
    uuid,
    token: answer.body.access_token,
    jobId: answer.body.job_id,
  };
}

/** The hosts as the operator sees them. */
export async function hosts(world: World): Promise<HostRecord[]> {
  const answer = await world.operator('GET', '/operator/hosts');
  assert.equal(answer.status, 200, answer.text);
  return answer.body.hosts as HostRecord[];
}

export async function host(world: World, id: string): Promise<HostRecord | undefined> {
  return (await hosts(world)).find((one) => one.id === id);
}

/** Marks a host lost. It disconnects before, and heartbeats that are being written are of an earlier connection: they would mark it online again. */
export async function lose(world: World, runner: ScriptedRunner): Promise<void> {
  runner.drop();
  await until(async () => (await host(world, runner.id))?.status !== 'online');
  await world.database.pool.query(
    `update runners set status = 'lost', ready = false, epoch = epoch + 1 where id = $1`,
    [runner.id],
  );
}

export async function waitFor(call: Caller, id: string, status: string): Promise<SandboxRecord> {
  const path = `/vms/${id}?wait_exact=${status}&timeout_ms=${PATIENCE_MS}`;
  let answer = await call('GET', path);
  // A poll ends after `waitMsMax`, and at once when the status cannot come any more.
  for (let ms = LIMITS.waitMsMax; answer.body.status !== status && ms < PATIENCE_MS; ms += LIMITS.waitMsMax)
    answer = await call('GET', path);
  assert.equal(answer.body.status, status, answer.text);
  return answer.body as SandboxRecord;
}

/** Whatever a test did, the rows of the hosts say what is allocated there. */
async function checkAllocations({ pool }: Database): Promise<void> {
  const wrong = await pool.query('select * from wrong_host_allocations()').catch((error: unknown) => {
    // Some tests end their database.
    if (isDatabaseUnavailable(error)) return { rows: [] };
    throw error;
  });
  assert.deepEqual(wrong.rows, []);
}
