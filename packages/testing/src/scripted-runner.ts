/** A runner that follows a script: a peer of the real protocol, without a machine behind it. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import { DOCKER_CAPABILITY, DOCKERFILE_CAPABILITY, RUNNER_LINK_PATH } from '@releap/contract';
import {
  KIND_NAMES,
  MOVES_CAPABILITY,
  RUNNER_PROTOCOL,
  OBJECT_STORES_CAPABILITY,
  VOLUMES_CAPABILITY,
  type ArtifactAssignment,
  type BuildReport,
  type ControlMessage,
  type HeldMemory,
  type HelloMessage,
  type Report,
  type RunnerFacts,
  type RunnerMessage,
  type VolumeAssignment,
} from '@releap/contract/runner';
import { WebSocket } from 'ws';
import { credentialOf, joinAs } from './credentials.ts';
import { PATIENCE_MS } from './eventually.ts';
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
import { ScriptedDataServer } from './scripted-data-server.ts';
import { CAPTURED, capturedMemory, FACTS, REGION } from './scripted-host.ts';

const BEAT_MS = 1_000;
/** A script's reaction to an assignment: it reports observations, one after the other. */
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
  artifact: (assignment: ArtifactAssignment, runner: ScriptedRunner) => void;
  volume: (assignment: VolumeAssignment, runner: ScriptedRunner) => void;
  ready: boolean;
  connect: boolean;
  /** Put over the hello. */
  hello: Partial<HelloMessage>;
  /** Sends only the messages of a test, though silence ends a link. */
  mute: boolean;
  /** Resolves once the server knows that this runner is disconnected. */
  noticed?: (id: string) => Promise<void>;
}

/** Brings everything to its desired state, with as few observations as possible. */
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
/** Takes and removes every snapshot at once. */
export const takesSnapshots: RunnerOptions['snapshot'] = (assignment, runner) => {
  if (assignment.desired === 'deleted') runner.observeSnapshot(assignment, { status: 'deleted' });
  else if (assignment.captured === undefined)
    runner.observeSnapshot(assignment, {
      ...CAPTURED,
      ...(assignment.kind === 'full' ? capturedMemory({ ...FACTS, ...runner.options.facts }) : {}),
    });
};
/** Has every artifact, and uploads none. */
const hasArtifacts: RunnerOptions['artifact'] = ({ id, generation, desired }, runner) => {
  if (desired !== 'stored') runner.report({ kind: 'artifact', id, generation, status: desired, detail: {} });
};
/** Has no changes to commit, and removes what was deleted. */
const hasNoChanges: RunnerOptions['volume'] = ({ id, generation, desired, spec }, runner) => {
  if (desired === 'deleted') runner.report({ kind: 'volume', id, generation, status: 'deleted', detail: {} });
  else runner.report({ kind: 'volume', id, generation, status: 'absent', detail: { commit: spec.commit } });
};
/** Accepts everything and reports nothing. */
export const silent: Script = () => undefined;

/** A peer of the real protocol: it connects the real link and follows its script. */
export class ScriptedRunner implements AsyncDisposable {
  readonly id: string;
  readonly options: RunnerOptions;
  readonly assignments = new Map<string, Assignment>();
  readonly snapshots = new Map<string, SnapshotAssignment>();
  readonly artifacts = new Map<string, ArtifactAssignment>();
  readonly volumes = new Map<string, VolumeAssignment>();
  readonly builds: BuildJob[] = [];
  /** Builds that it was told to cancel. */
  readonly cancelled: BuildJob[] = [];
  readonly received: ControlMessage[] = [];
  closeReason = '';
  acked = 0;
  seq = 0;
  closeCode: number | undefined;
  readonly #data: ScriptedDataServer;
  /** Says 'change' after each message, and when a link is closed. */
  readonly #events = new EventEmitter().setMaxListeners(0);
  #socket: WebSocket | undefined;
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
        runner.built(job, { manifest_name: `sha256:${'cd'.repeat(32)}`, layer_count: 3, bytes: 4096 }),
      cancel: (job, runner) => runner.built(job, {}, 'cancelled'),
      snapshot: takesSnapshots,
      artifact: hasArtifacts,
      volume: hasNoChanges,
      ready: true,
      connect: true,
      hello: {},
      mute: false,
      ...options,
    };
    this.id = this.options.id;
    this.#data = new ScriptedDataServer(this.id, base);
  }

  static async start(base: () => string, options: Partial<RunnerOptions>): Promise<ScriptedRunner> {
    const runner = new ScriptedRunner(base, options);
    await runner.#data.listen();
    if (runner.options.connect) await runner.connect();
    return runner;
  }

  /** Answers of the data server; by path. */
  get logs(): ScriptedDataServer['logs'] {
    return this.#data.logs;
  }

  /** Sandboxes whose ports accept no connections; those of others do, and are closed at once. */
  get deaf(): ScriptedDataServer['deaf'] {
    return this.#data.deaf;
  }

  stopData(): void {
    this.#data.stop();
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
      this.#events.emit('change');
    });
    socket.on('message', (data) => this.#take(JSON.parse((data as Buffer).toString()) as ControlMessage));
    await new Promise<void>((resolve, reject) => {
      socket.once('open', resolve);
      socket.once('error', reject);
    });
    this.received.length = 0;
    const synced = this.#until(
      () =>
        this.received.some((message) => message.type === 'sync' && !message.more) ||
        this.closeCode !== undefined,
    );
    this.send({
      type: 'hello',
      protocol: RUNNER_PROTOCOL,
      runner_id: this.id,
      region: this.options.region,
      data_url: this.#data.url,
      facts: { ...FACTS, ...this.options.facts },
      capabilities: [
        DOCKERFILE_CAPABILITY,
        DOCKER_CAPABILITY,
        MOVES_CAPABILITY,
        OBJECT_STORES_CAPABILITY,
        VOLUMES_CAPABILITY,
      ],
      kinds: [...KIND_NAMES],
      ...this.options.hello,
    });
    this.#ready = false;
    clearInterval(this.#beat);
    // Also during the sync, which may take longer than a link may be silent.
    if (!this.options.mute) this.#beat = setInterval(() => this.heartbeat(this.#ready), BEAT_MS).unref();
    await synced;
    if (this.options.ready) this.heartbeat(true);
  }

  /** What it says with its heartbeats; older runners say nothing. */
  heldMemory: HeldMemory | undefined;
  freeDiskMib: number | undefined;

  heartbeat(ready: boolean): void {
    this.#ready = ready;
    this.send({
      type: 'heartbeat',
      ready,
      ...(this.heldMemory && { held_memory: this.heldMemory }),
      ...(this.freeDiskMib !== undefined && { free_disk_mib: this.freeDiskMib }),
    });
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
    await this.#until(() => this.acked >= seq);
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
    await this.#until(() => this.acked >= seq);
  }

  /** The newest assignment of a snapshot, once it has come. */
  async snapshotAssigned(
    id: string,
    wanted: (assignment: SnapshotAssignment) => boolean = () => true,
  ): Promise<SnapshotAssignment> {
    await this.#until(() => {
      const assignment = this.snapshots.get(id);
      return assignment !== undefined && wanted(assignment);
    });
    return this.snapshots.get(id) as SnapshotAssignment;
  }

  built(job: BuildJob, result: BuildReport['detail'], status?: BuildReport['status']): number {
    return this.report(toBuildReport(job, result, status));
  }

  /** The newest assignment of this artifact, once it has come. */
  async artifactAssigned(
    artifactId: string,
    wanted: (assignment: ArtifactAssignment) => boolean = () => true,
  ): Promise<ArtifactAssignment> {
    const find = (): ArtifactAssignment | undefined =>
      [...this.artifacts.values()].find((one) => one.spec.artifact_id === artifactId && wanted(one));
    await this.#until(() => find() !== undefined);
    return find() as ArtifactAssignment;
  }

  /** The newest assignment of a sandbox, once it has come. */
  async assigned(
    uuid: string,
    wanted: (assignment: Assignment) => boolean = () => true,
  ): Promise<Assignment> {
    await this.#until(() => {
      const assignment = this.assignments.get(uuid);
      return assignment !== undefined && wanted(assignment);
    });
    return this.assignments.get(uuid) as Assignment;
  }

  /** Breaks the connection without a close frame. */
  drop(): void {
    clearInterval(this.#beat);
    this.#socket?.terminate();
  }

  /** Waits until something that the server says makes this true. */
  async #until(condition: () => boolean): Promise<void> {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    while (!condition()) {
      await once(this.#events, 'change', { signal }).catch(() =>
        assert.fail(`did not come true within ${PATIENCE_MS} ms: ${condition.toString()}`),
      );
    }
  }

  #take(message: ControlMessage): void {
    this.#receive(message);
    this.#events.emit('change');
  }

  #receive(message: ControlMessage): void {
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
      } else if (item.kind === 'artifact') {
        this.artifacts.set(item.id, item);
        this.options.artifact(item, this);
      } else if (item.kind === 'volume') {
        this.volumes.set(item.id, item);
        this.options.volume(item, this);
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

  /** Disconnects, and waits until the server has noticed. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.drop();
    this.stopData();
    await this.options.noticed?.(this.id);
  }
}
