/** This runner's link with control planes of its own and of other versions (docs/runner-protocol.md, 'Versions'). */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type {
  Assignment,
  HeartbeatMessage,
  HelloMessage,
  Report,
  ReportMessage,
  RunnerMessage,
  SandboxSpec,
} from '@releap/contract/runner';
import { pino } from 'pino';
import { WebSocketServer, type WebSocket } from 'ws';
import { ControlLink } from '../src/link/control-link.ts';
import { Deployment } from '../src/link/deployment.ts';
import type { AnyKindHandler } from '../src/link/kind-handler.ts';

const SPEC: SandboxSpec = {
  name: 'a',
  root: { type: 'builtin', name: 'busybox' },
  mode: 'burstable',
  cpu: 1,
  vcpus: 1,
  mem_mib: 128,
  scratch_mib: 128,
  ports: [],
  env: {},
  persistent: false,
  spot: false,
};
const DEPLOYMENT = randomUUID();
const WELCOME = {
  type: 'welcome',
  protocol: 1,
  deployment_id: DEPLOYMENT,
  capabilities: [],
  kinds: ['sandbox', 'snapshot'],
};
const sandbox = (id: string, more: object = {}): object => ({
  kind: 'sandbox',
  id,
  generation: 1,
  desired: 'running',
  spec: SPEC,
  ...more,
});

async function until(condition: () => boolean): Promise<void> {
  for (const end = performance.now() + 30_000; !condition(); await sleep(5))
    assert.ok(performance.now() < end, condition.toString());
}

/** A control plane that sends the messages of a test. */
class Control implements AsyncDisposable {
  readonly #server: WebSocketServer;
  socket: WebSocket | undefined;
  readonly hellos: HelloMessage[] = [];
  readonly reports: ReportMessage[] = [];
  readonly heartbeats: HeartbeatMessage[] = [];
  closed: { code: number; reason: string } | undefined;
  /** Sent in answer to each hello. */
  greeting: object[];

  static async start(greeting: object[]): Promise<Control> {
    const control = new Control(greeting);
    await once(control.#server, 'listening');
    return control;
  }

  private constructor(greeting: object[]) {
    this.greeting = greeting;
    this.#server = new WebSocketServer({ port: 0, host: '127.0.0.1' });
    this.#server.on('connection', (socket) => {
      this.socket = socket;
      socket.on('close', (code, reason) => {
        this.closed = { code, reason: reason.toString() };
      });
      socket.on('message', (data) => {
        const message = JSON.parse((data as Buffer).toString()) as RunnerMessage;
        if (message.type === 'report') this.reports.push(message);
        if (message.type === 'heartbeat') this.heartbeats.push(message);
        if (message.type !== 'hello') return;
        this.hellos.push(message);
        for (const one of this.greeting) this.send(one);
      });
    });
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as { port: number }).port}`;
  }

  send(message: object): void {
    this.socket?.send(JSON.stringify(message));
  }

  get items(): Report[] {
    return this.reports.flatMap(({ items }) => items);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const client of this.#server.clients) client.terminate();
    this.#server.close();
    await once(this.#server, 'close');
  }
}

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'releap-link-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));
const deploymentFile = (): string => join(folder, 'deployment');

class Linked implements AsyncDisposable {
  readonly assigned: Assignment[] = [];
  readonly named: string[] = [];
  readonly stored: Report[] = [];
  synced = 0;
  readonly link: ControlLink;

  constructor(control: Control, kinds: readonly ('sandbox' | 'snapshot')[] = ['sandbox', 'snapshot']) {
    const handler = (kind: 'sandbox' | 'snapshot'): AnyKindHandler => ({
      kind,
      assign: (assignment) => void this.assigned.push(assignment),
      named: (id) => void this.named.push(id),
      stored: (report) => void this.stored.push(report),
    });
    this.link = new ControlLink({
      controlUrl: control.url,
      credential: () => Promise.resolve('token'),
      deployment: Deployment.open(deploymentFile()),
      refusedRetryMs: 50,
      log: pino({ enabled: false }),
    });
    this.link.start({
      hello: () => ({
        runner_id: randomUUID(),
        region: 'here',
        data_url: 'unix:/run/x.sock',
        capabilities: [],
        facts: {
          arch: 'amd64',
          cores: 1,
          mem_mib: 1,
          disk_mib: 1,
          accelerator: 'tcg',
          cpu_model: 'max',
          vmm: 'x',
          gpus: 0,
        },
      }),
      isReady: () => true,
      heldMemory: () => ({ mem_mib: 300, reclaimable_mib: 200 }),
      freeDiskMib: () => 400,
      handlers: kinds.map(handler),
      onLinked: () => undefined,
      onSynced: () => this.synced++,
    });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.link.close();
  }
}

describe('the link of a runner', () => {
  it('sends its version, kinds and deployment, and joins the deployment that welcomes it first', async () => {
    await using control = await Control.start([WELCOME, { type: 'sync', items: [] }]);
    await using runner = new Linked(control);
    await until(() => runner.synced === 1);
    const [first] = control.hellos;
    assert.deepEqual(
      [first?.protocol, first?.kinds, first?.deployment_id],
      [1, ['sandbox', 'snapshot'], undefined],
    );
    assert.equal((await readFile(deploymentFile(), 'utf8')).trim(), DEPLOYMENT);
    control.socket?.terminate();
    await until(() => control.hellos.length === 2);
    assert.equal(control.hellos[1]?.deployment_id, DEPLOYMENT);
  });

  it('sends what was not acknowledged again after the next welcome, newest state only, in few messages', async () => {
    await using control = await Control.start([WELCOME, { type: 'sync', items: [] }]);
    await using runner = new Linked(control);
    await until(() => runner.synced === 1);
    const [one, two] = [randomUUID(), randomUUID()];
    const report = (id: string, generation: number): Report => ({
      kind: 'sandbox',
      id,
      generation,
      status: 'running',
      detail: {},
    });
    for (const [id, generation] of [
      [one, 1],
      [two, 1],
      [one, 2],
    ] as const)
      runner.link.report(report(id, generation));
    await until(() => control.reports.length === 3);
    control.reports.length = 0;
    control.socket?.terminate();
    await until(() => control.reports.length > 0);
    assert.deepEqual(
      control.reports.map(({ items }) => items.map(({ id, generation }) => [id, generation])),
      [
        [
          [two, 1],
          [one, 2],
        ],
      ],
    );
    control.send({ type: 'ack', seq: control.reports[0]?.seq });
    await until(() => runner.stored.length === 2);
    await runner.link.flushed(AbortSignal.timeout(10_000));
  });

  it('says with its heartbeats whether it is ready and what it holds for sandboxes', async () => {
    await using control = await Control.start([WELCOME, { type: 'sync', items: [] }]);
    await using runner = new Linked(control);
    await until(() => runner.synced === 1);
    runner.link.heartbeat();
    await until(() => control.heartbeats.length > 0);
    assert.deepEqual(control.heartbeats[0], {
      type: 'heartbeat',
      ready: true,
      held_memory: { mem_mib: 300, reclaimable_mib: 200 },
      free_disk_mib: 400,
    });
  });

  it('says hello again when what it says has changed', async () => {
    await using control = await Control.start([WELCOME, { type: 'sync', items: [] }]);
    await using runner = new Linked(control);
    runner.link.renew();
    await until(() => runner.synced === 1);
    runner.link.renew();
    await until(() => runner.synced === 2);
    assert.equal(control.hellos.length, 2);
  });

  it('acts for no other deployment: it says so, assigns nothing, and tries again', async () => {
    await writeFile(deploymentFile(), `${randomUUID()}\n`);
    const own = (await readFile(deploymentFile(), 'utf8')).trim();
    await using control = await Control.start([WELCOME, { type: 'sync', items: [sandbox(randomUUID())] }]);
    await using runner = new Linked(control);
    await until(() => control.hellos.length >= 2);
    assert.deepEqual(control.closed, {
      code: 4006,
      reason: `the runner belongs to deployment ${own}, this is ${DEPLOYMENT}`,
    });
    assert.deepEqual([runner.assigned, runner.synced, control.reports], [[], 0, []]);
    assert.equal((await readFile(deploymentFile(), 'utf8')).trim(), own);
  });
});

describe('with an older control plane', () => {
  it('that does not begin with a welcome, it acts on nothing', async () => {
    const assignment = { vm_id: randomUUID(), generation: 1, desired: 'running', spec: SPEC };
    await using control = await Control.start([{ type: 'sync', assignments: [assignment], snapshots: [] }]);
    await using runner = new Linked(control);
    await until(() => control.hellos.length >= 2);
    assert.deepEqual(control.closed, { code: 4001, reason: 'the first message must be welcome' });
    assert.deepEqual([runner.assigned, runner.synced], [[], 0]);
  });

  it('that knows fewer kinds, sandboxes are assigned; no resource of the other kind is an orphan', async () => {
    const id = randomUUID();
    await using control = await Control.start([
      { ...WELCOME, kinds: ['sandbox'] },
      { type: 'sync', items: [sandbox(id)] },
      { type: 'ack', seq: 0 },
    ]);
    await using runner = new Linked(control);
    await until(() => runner.assigned.length === 1);
    const seen: Report = { kind: 'sandbox', id, generation: 1, status: 'running', detail: {} };
    runner.link.report(seen);
    await until(() => control.items.length === 1);
    assert.deepEqual([runner.assigned[0]?.id, runner.synced], [id, 0]);
  });
});

describe('with a newer control plane', () => {
  it('does what both know: unknown fields and messages are ignored, unknown kinds reported', async () => {
    const [known, tunnel, odd] = [randomUUID(), randomUUID(), randomUUID()];
    await using control = await Control.start([
      { ...WELCOME, capabilities: ['x'], kinds: [...WELCOME.kinds, 'tunnel'], cell: 'a' },
      { type: 'maintenance', at: 'noon' },
      {
        type: 'sync',
        items: [
          sandbox(known, { shard: 1, spec: { ...SPEC, numa: 'near' } }),
          { kind: 'tunnel', id: tunnel, generation: 3, desired: 'attached', spec: {} },
          sandbox(odd, { desired: 'hibernated' }),
        ],
        more: false,
      },
    ]);
    await using runner = new Linked(control);
    await until(() => control.items.length === 2);
    assert.deepEqual(
      runner.assigned.map(({ id }) => id),
      [known],
    );
    assert.deepEqual(
      control.items.map(({ kind, id, generation, status }) => [kind, id, generation, status]),
      [
        ['tunnel', tunnel, 3, 'unsupported'],
        ['sandbox', odd, 1, 'unsupported'],
      ],
    );
    assert.deepEqual(runner.named, [odd], 'it is named, so it is no orphan');
    assert.equal(runner.synced, 1);
    assert.equal(control.closed, undefined);
  });

  it('takes nothing for an orphan when a part of the sync cannot be read', async () => {
    await using control = await Control.start([
      WELCOME,
      { type: 'sync', items: 'compressed', more: true },
      { type: 'sync', items: [sandbox(randomUUID())], more: false },
    ]);
    await using runner = new Linked(control);
    await until(() => runner.assigned.length === 1);
    await sleep(50);
    assert.equal(runner.synced, 0);
  });

  it('that speaks only a newer protocol, it refuses and says so', async () => {
    await using control = await Control.start([{ ...WELCOME, protocol: 2 }]);
    await using runner = new Linked(control);
    await until(() => control.hellos.length >= 2);
    assert.deepEqual(control.closed, { code: 4007, reason: 'control speaks protocol 2: upgrade the runner' });
    assert.equal(runner.synced, 0);
  });
});
