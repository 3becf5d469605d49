/** What the tests of the control plane share: a server on a fresh database, callers, and a runner that follows a script. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { cpuMarker, newUuid, RUNNER_LINK_PATH, type SandboxRecord } from '@releap/contract';
import {
  KIND_NAMES,
  RUNNER_PROTOCOL,
  type BuildReport,
  type ControlMessage,
  type HelloMessage,
  type Report,
  type RunnerFacts,
  type RunnerMessage,
} from '@releap/contract/runner';
import { openDatabase, type Database } from '@releap/database';
import { WebSocket } from 'ws';
import {
  credentialOf,
  dataKeyOf,
  GATEWAY_TOKEN,
  joinAs,
  OPERATOR_TOKEN,
  opens,
  TOKENS,
} from './credentials.ts';
import { endFirst, freshDatabase, quiet } from './postgres.ts';
import {
  ensureBootstrap,
  mintApiKey,
  startControl,
  type Control,
  type ControlOptions,
} from '@releap/control';
import {
  toAssignment,
  toBuildJob,
  toBuildReport,
  toReport,
  toSnapshotAssignment,
  toSnapshotReport,
  type Assignment,
  type BuildJob,
  type Observation,
  type SnapshotAssignment,
  type SnapshotObservation,
} from './runner-messages.ts';

/** For a machine that does many other things at the same time. */
export const PATIENCE_MS = 60_000;
const BEAT_MS = 1_000;
export const REGION = 'here';
const BURSTABLE = { cpu: 8, mem: 4, disk: 4, tier: 'burstable' } as const;
export { quiet };
export type { Assignment, BuildJob, Observation, SnapshotAssignment, SnapshotObservation };

export interface Answer {
  status: number;
  headers: Headers;
  text: string;
  // oxlint-disable-next-line typescript/no-explicit-any -- tests look at whatever came
  body: any;
}

export interface Caller {
  (method: string, path: string, body?: unknown, init?: RequestInit): Promise<Answer>;
  readonly key: string;
  readonly projectId: string;
}

export interface World extends AsyncDisposable {
  control: Control;
  database: Database;
  url: string;
  internalUrl: string;
  /** With the default project's key. */
  call: Caller;
  /** With the operator's token, on the internal listener. */
  operator: Caller;
  /** With the token of gateways, on the internal listener. */
  gateway: Caller;
  /** With the key of a project of its own. */
  stranger(): Promise<Caller>;
  runner(options?: Partial<RunnerOptions>): Promise<ScriptedRunner>;
  /** Ends the control server and starts another on the same database and port. */
  restart(options?: Partial<ControlOptions>): Promise<void>;
  /** A second server on the same database. */
  another(options?: Partial<ControlOptions>): Promise<Control>;
}

export function caller(base: () => string, key: string, projectId: string): Caller {
  const call = async (
    method: string,
    path: string,
    body?: unknown,
    init: RequestInit = {},
  ): Promise<Answer> => {
    const response = await fetch(base() + path, {
      method,
      ...init,
      headers: {
        ...(key === '' ? {} : { authorization: `Bearer ${key}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...(init.headers as Record<string, string> | undefined),
      },
      ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    });
    const text = await response.text();
    let parsed: unknown;
    try {
      parsed = JSON.parse(text);
    } catch {
      parsed = undefined;
    }
    return { status: response.status, headers: response.headers, text, body: parsed };
  };
  return Object.assign(call, { key, projectId });
}

export async function startWorld(options: Partial<ControlOptions> = {}): Promise<World> {
  const databaseUrl = options.databaseUrl ?? (await freshDatabase());
  const all = (extra: Partial<ControlOptions>): ControlOptions => ({
    databaseUrl,
    databaseConnections: 6,
    listen: { host: '127.0.0.1', port: 0 },
    tokens: TOKENS,
    region: { id: REGION, name: 'Here', toolboxProxyUrl: 'http://127.0.0.1:1/' },
    builtinImages: ['busybox'],
    log: quiet,
    ...options,
    ...extra,
    // As on a machine of one's own: scripted hosts take as many sandboxes as a test likes.
    limits: { sweepMs: 100, overcommit: BURSTABLE, ...options.limits, ...extra.limits },
  });
  await using cleanup = new AsyncDisposableStack();
  const world = { control: await startControl(all({})) };
  cleanup.defer(() => world.control.close());
  const database = openDatabase({ url: databaseUrl, log: quiet, connections: 3 });
  cleanup.use(database);
  const bootstrap = await ensureBootstrap(database);
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
    operator: caller(() => world.control.internalUrl, OPERATOR_TOKEN, ''),
    gateway: caller(() => world.control.internalUrl, GATEWAY_TOKEN, ''),
    async stranger() {
      const projectId = newUuid();
      await database.pool.query('insert into projects (id, org_id, name) values ($1, $2, $3)', [
        projectId,
        bootstrap.orgId,
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
      world.control = await startControl(
        all({
          ...extra,
          listen: { host: '127.0.0.1', port },
          internalListen: { host: '127.0.0.1', port: internalPort },
        }),
      );
    },
    async another(extra: Partial<ControlOptions> = {}) {
      const control = await startControl(all(extra));
      owned.use(control);
      return control;
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  });
}

export const FACTS: RunnerFacts = {
  arch: 'amd64',
  cores: 8,
  mem_mib: 32_768,
  disk_mib: 100_000,
  accelerator: 'tcg',
  cpu_model: 'max',
  vmm: 'scripted 1',
  gpus: 0,
};

/** What a script does with an assignment: says what it observes, one after the other. */
export type Script = (assignment: Assignment, runner: ScriptedRunner) => void | Promise<void>;

export interface RunnerOptions {
  id: string;
  region: string;
  facts: Partial<RunnerFacts>;
  script: Script;
  build: (job: BuildJob, runner: ScriptedRunner) => void;
  /** The build is not wanted any more. */
  cancel: (job: BuildJob, runner: ScriptedRunner) => void;
  snapshot: (assignment: SnapshotAssignment, runner: ScriptedRunner) => void;
  ready: boolean;
  connect: boolean;
  /** Put over the hello. */
  hello: Partial<HelloMessage>;
  /** Says nothing but what a test has it say, though silence ends a link. */
  mute: boolean;
  /** Resolves once the server knows that this runner is away. */
  noticed?: (id: string) => Promise<void>;
}

/** Brings everything to where it is wanted, by the shortest way. */
export const obedient: Script = (assignment, runner) => {
  const is = {
    running: ['building', 'booting', 'running'],
    stopped: ['stopped'],
    paused: ['paused'],
    deleted: ['deleted'],
  } as const;
  for (const status of is[assignment.desired]) {
    runner.observe(assignment, {
      status,
      ...(status === 'running'
        ? {
            vm_ip: '172.16.0.2',
            host_ip: '127.0.0.1',
            manifest_name: `sha256:${'ab'.repeat(32)}`,
            port_map: assignment.spec.ports.map((port, index) => ({ ...port, host_port: 20_000 + index })),
          }
        : {}),
    });
  }
};
export const CAPTURED = {
  status: 'ready',
  artifact_ref: 'kept/here',
  manifest_name: `sha256:${'ab'.repeat(32)}`,
  disk_bytes: 4096,
} as const;
/** What a full one of the scripted host says beside that. */
export const CAPTURED_MEMORY = {
  fc_version: FACTS.vmm,
  cpu_marker: cpuMarker(FACTS),
  mem_bytes: 1024 * 1024 * 1024,
} as const;

/** Takes and removes every snapshot at once. */
export const takesSnapshots: RunnerOptions['snapshot'] = (assignment, runner) => {
  if (assignment.desired === 'deleted') runner.observeSnapshot(assignment, { status: 'deleted' });
  else if (assignment.captured === undefined)
    runner.observeSnapshot(assignment, {
      ...CAPTURED,
      ...(assignment.kind === 'full' ? CAPTURED_MEMORY : {}),
    });
};
/** Takes everything in and says nothing. */
export const silent: Script = () => undefined;

/** A peer of the real protocol: it dials the real link and speaks as it was told to. */
export class ScriptedRunner implements AsyncDisposable {
  readonly id: string;
  readonly options: RunnerOptions;
  readonly assignments = new Map<string, Assignment>();
  readonly snapshots = new Map<string, SnapshotAssignment>();
  readonly builds: BuildJob[] = [];
  /** Builds that it was told to cancel. */
  readonly cancelled: BuildJob[] = [];
  readonly received: ControlMessage[] = [];
  closeReason = '';
  acked = 0;
  seq = 0;
  closeCode: number | undefined;
  /** Answers of the data server; by path. */
  readonly logs = new Map<string, (request: IncomingMessage, response: ServerResponse) => void>();
  #socket: WebSocket | undefined;
  #data: Server | undefined;
  #dataUrl = '';
  #ready = false;
  #beat: NodeJS.Timeout | undefined;
  readonly #base: () => string;

  private constructor(base: () => string, options: Partial<RunnerOptions>) {
    this.#base = base;
    this.options = {
      id: randomUUID(),
      region: REGION,
      facts: {},
      script: obedient,
      build: (job, runner) =>
        runner.built(job, { manifest_name: `sha256:${'cd'.repeat(32)}`, layer_count: 3 }),
      cancel: (job, runner) => runner.built(job, {}, 'cancelled'),
      snapshot: takesSnapshots,
      ready: true,
      connect: true,
      hello: {},
      mute: false,
      ...options,
    };
    this.id = this.options.id;
  }

  static async start(base: () => string, options: Partial<RunnerOptions>): Promise<ScriptedRunner> {
    const runner = new ScriptedRunner(base, options);
    await runner.#serveData();
    if (runner.options.connect) await runner.connect();
    return runner;
  }

  async #serveData(): Promise<void> {
    const server = createServer((request, response) => {
      const handler = this.logs.get(request.url ?? '');
      const answer = async (): Promise<void> => {
        const token = /^Bearer (.*)$/.exec(request.headers.authorization ?? '')?.[1] ?? '';
        const vmId = /^\/vms\/([^/]+)\//.exec(request.url ?? '')?.[1] ?? '';
        const key = await dataKeyOf(this.#base(), credentialOf(this.id));
        if (!(await opens(key, token, this.id, vmId))) response.writeHead(401).end();
        else if (handler === undefined) response.writeHead(404).end('{"error":"no log"}');
        else handler(request, response);
      };
      answer().catch(() => response.destroy());
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    this.#data = server;
    this.#dataUrl = `http://127.0.0.1:${(server.address() as { port: number }).port}`;
  }

  stopData(): void {
    this.#data?.closeAllConnections();
    this.#data?.close();
  }

  /** Dials, says hello, waits for the sync and says that it is ready. */
  async connect(): Promise<void> {
    await joinAs(this.#base(), this.id);
    const socket = new WebSocket(this.#base().replace('http', 'ws') + RUNNER_LINK_PATH, {
      headers: { authorization: `Bearer ${credentialOf(this.id)}` },
    });
    this.#socket = socket;
    this.closeCode = undefined;
    socket.on('close', (code, reason) => {
      if (this.#socket !== socket) return;
      this.closeReason = reason.toString();
      this.closeCode = code;
    });
    socket.on('message', (data) => this.#take(JSON.parse((data as Buffer).toString()) as ControlMessage));
    await new Promise<void>((resolve, reject) => {
      socket.once('open', resolve);
      socket.once('error', reject);
    });
    this.received.length = 0;
    const synced = until(
      () =>
        this.received.some((message) => message.type === 'sync' && !message.more) ||
        this.closeCode !== undefined,
    );
    this.send({
      type: 'hello',
      protocol: RUNNER_PROTOCOL,
      runner_id: this.id,
      region: this.options.region,
      data_url: this.#dataUrl,
      facts: { ...FACTS, ...this.options.facts },
      capabilities: [],
      kinds: [...KIND_NAMES],
      ...this.options.hello,
    });
    await synced;
    this.#ready = false;
    if (this.options.ready) this.heartbeat(true);
    if (this.options.mute) return;
    clearInterval(this.#beat);
    this.#beat = setInterval(() => this.heartbeat(this.#ready), BEAT_MS).unref();
  }

  heartbeat(ready: boolean): void {
    this.#ready = ready;
    this.send({ type: 'heartbeat', ready });
  }

  send(message: RunnerMessage): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  sendRaw(text: string): void {
    this.#socket?.send(text);
  }

  observe(
    assignment: Pick<Assignment, 'vm_id' | 'generation'>,
    seen: Omit<Observation, 'vm_id' | 'generation'>,
  ): number {
    const { vm_id, generation } = assignment;
    return this.report(toReport({ vm_id, generation, ...seen }));
  }

  /** @returns the sequence number that is acknowledged once all of it is stored */
  report(...items: Report[]): number {
    const seq = ++this.seq;
    this.send({ type: 'report', seq, items });
    return seq;
  }

  /** Observes, and waits until it is written down. */
  async observed(
    assignment: Pick<Assignment, 'vm_id' | 'generation'>,
    seen: Omit<Observation, 'vm_id' | 'generation'>,
  ): Promise<void> {
    const seq = this.observe(assignment, seen);
    await until(() => this.acked >= seq);
  }

  observeSnapshot(
    { snapshot_id, generation }: Pick<SnapshotAssignment, 'snapshot_id' | 'generation'>,
    seen: Omit<SnapshotObservation, 'snapshot_id' | 'generation'>,
  ): number {
    return this.report(toSnapshotReport({ snapshot_id, generation, ...seen }));
  }

  /** Observes, and waits until it is written down. */
  async observedSnapshot(...said: Parameters<ScriptedRunner['observeSnapshot']>): Promise<void> {
    const seq = this.observeSnapshot(...said);
    await until(() => this.acked >= seq);
  }

  /** The newest assignment of a snapshot, once it has come. */
  async snapshotAssigned(
    id: string,
    wanted: (assignment: SnapshotAssignment) => boolean = () => true,
  ): Promise<SnapshotAssignment> {
    await until(() => {
      const assignment = this.snapshots.get(id);
      return assignment !== undefined && wanted(assignment);
    });
    return this.snapshots.get(id) as SnapshotAssignment;
  }

  built(job: BuildJob, result: BuildReport['detail'], status?: BuildReport['status']): number {
    return this.report(toBuildReport(job, result, status));
  }

  /** The newest assignment of a sandbox, once it has come. */
  async assigned(
    uuid: string,
    wanted: (assignment: Assignment) => boolean = () => true,
  ): Promise<Assignment> {
    await until(() => {
      const assignment = this.assignments.get(uuid);
      return assignment !== undefined && wanted(assignment);
    });
    return this.assignments.get(uuid) as Assignment;
  }

  /** Breaks the connection without a word. */
  drop(): void {
    clearInterval(this.#beat);
    this.#socket?.terminate();
  }

  #take(message: ControlMessage): void {
    this.received.push(message);
    if (message.type === 'ack') this.acked = Math.max(this.acked, message.seq);
    if (message.type !== 'sync' && message.type !== 'desired') return;
    for (const item of message.items) {
      if (item.kind === 'snapshot') {
        const snapshot = toSnapshotAssignment(item);
        this.snapshots.set(item.id, snapshot);
        this.options.snapshot(snapshot, this);
      } else if (item.kind === 'sandbox') {
        const assignment = toAssignment(item);
        this.assignments.set(item.id, assignment);
        void this.options.script(assignment, this);
      } else if (item.desired === 'done') {
        const job = toBuildJob(item);
        this.builds.push(job);
        this.options.build(job, this);
      } else {
        const job = toBuildJob(item);
        this.cancelled.push(job);
        this.options.cancel(job, this);
      }
    }
  }

  /** Goes away, and waits until the server has noticed. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.drop();
    this.stopData();
    await this.options.noticed?.(this.id);
  }
}

/** Waits for something that has no event of its own here. */
export async function until(condition: () => boolean | Promise<boolean>, ms = PATIENCE_MS): Promise<void> {
  for (const end = performance.now() + ms; ; await sleep(5)) {
    if (await condition()) return;
    if (performance.now() > end) assert.fail(`did not come true within ${ms} ms: ${condition.toString()}`);
  }
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
  const { rows } = await world.database.pool.query<{ sandbox_id: string }>(
    'select sandbox_id from jobs where id = $1',
    [answer.body.job_id],
  );
  return {
    id: answer.body.vm_id,
    uuid: rows[0]?.sandbox_id ?? '',
    token: answer.body.access_token,
    jobId: answer.body.job_id,
  };
}

export async function waitFor(call: Caller, id: string, status: string): Promise<SandboxRecord> {
  const answer = await call('GET', `/vms/${id}?wait_exact=${status}&timeout_ms=${PATIENCE_MS}`);
  assert.equal(answer.body.status, status, answer.text);
  return answer.body as SandboxRecord;
}
