import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, it, mock } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type { DesiredState } from '@releap/contract';
import { pino } from 'pino';
import { encodeMessage, FrameType, MAGIC } from '../src/guest/frames.ts';
import { ADOPT_DEADLINE_MS, MachineHost } from '../src/reconcile/machine-host.ts';
import type { MachineHostOptions } from '../src/reconcile/machine-host-options.ts';
import { Quarantine } from '../src/quarantine/quarantine.ts';
import { OperationMetrics } from '../src/metrics/operation-metrics.ts';
import { Reconciler } from '../src/reconcile/reconciler.ts';
import type { LiveSandbox, SandboxEvents, SandboxHost } from '../src/reconcile/sandbox-host.ts';
import { RecordStore } from '../src/reconcile/sandbox-record.ts';
import { SPEC } from './support/sandbox-spec.ts';
import type { Assignment, Observation } from '../src/reconcile/assignment.ts';

const VM = '81111111-2222-4333-8444-000000000001';
const OTHER = '81111111-2222-4333-8444-000000000002';
/** A background task that never runs. */
const HURRIED_MS = 60_000;

let folder: string;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'releap-rc-'));
});
after(async () => {
  await rm(folder, { recursive: true, force: true });
});

/** A machine without a VM: its calls are counted, and a shutdown waits until it is hurried. */
class PaperHost {
  booted: string[] = [];
  events: SandboxEvents | undefined;
  readonly live = {
    addresses: { vm_ip: '100.64.0.2', host_ip: '127.0.0.1', port_map: [] },
    shutDown: async (_graceMs: number, hurry: AbortSignal): Promise<void> => {
      if (!hurry.aborted) await once(hurry, 'abort');
    },
    suspend: async (): Promise<void> => undefined,
    compactDisk: async (): Promise<void> => undefined,
    setClock: async (): Promise<void> => undefined,
    close: async (): Promise<void> => undefined,
  };

  hasImage = async (): Promise<boolean> => true;
  hasTemplate = async (): Promise<boolean> => true;
  makeTemplate = async (): Promise<void> => undefined;
  acquireImage = async (): Promise<object> => ({ digest: 'sha256:0', [Symbol.dispose]: () => undefined });
  discardMemory = async (): Promise<void> => undefined;
  end = async (): Promise<void> => undefined;
  destroy = async (): Promise<void> => undefined;

  boot = async (
    { vm_id }: Assignment,
    _image: unknown,
    _past: unknown,
    events: SandboxEvents,
  ): Promise<LiveSandbox> => {
    this.booted.push(vm_id);
    this.events = events;
    return this.live as unknown as LiveSandbox;
  };

  adopt = async (): Promise<LiveSandbox> => await Promise.reject(new Error('there is none'));

  localState = async (): Promise<object> => {
    return { disk: true, memory: false, resumed: false, hostRestarted: false };
  };
}

function quarantineIn(home: string): Quarantine {
  return new Quarantine({
    folder: join(home, 'quarantine'),
    source: join(home, 'vms'),
    log: pino({ enabled: false }),
  });
}

/** @param state folder of the records */
async function opened(state?: string) {
  const host = new PaperHost();
  const observations: Observation[] = [];
  const reports = new EventEmitter<Record<string, []>>();
  const reconciler = new Reconciler({
    operations: new OperationMetrics(),
    host: host as unknown as SandboxHost,
    records: new RecordStore(state ?? (await mkdtemp(join(folder, 'state-')))),
    quarantine: quarantineIn(await mkdtemp(join(folder, 'home-'))),
    report: (observation) => {
      observations.push(observation);
      reports.emit(observation.status);
    },
    log: pino({ enabled: false }),
  });
  await reconciler.load();
  const want = (vmId: string, generation: number, desired: DesiredState): void =>
    reconciler.assign({ vm_id: vmId, generation, desired, spec: SPEC });
  return { host, reconciler, observations, reports, want };
}

it('a sandbox whose size has no template is building until there is one, and has all of its time to boot after it', async (t) => {
  const { host, reconciler, observations, want } = await opened();
  const order: unknown[] = [];
  host.hasTemplate = async () => false;
  host.makeTemplate = async () => void order.push(observations.at(-1)?.status);
  const timeout = AbortSignal.timeout.bind(AbortSignal);
  t.mock.method(AbortSignal, 'timeout', (ms: number) => {
    order.push(ms);
    return timeout(ms);
  });
  want(VM, 1, 'running');
  await reconciler.get(VM)?.idle();
  assert.deepEqual(order.slice(-2), ['building', 90_000]);
  assert.deepEqual(
    observations.map(({ status }) => status),
    ['building', 'booting', 'running'],
  );
});

it('a deletion hurries a stop that has just started', { timeout: HURRIED_MS }, async () => {
  const { reconciler, observations, reports, want } = await opened();
  want(VM, 1, 'running');
  await reconciler.get(VM)?.idle();
  reports.once('stopping', () => want(VM, 3, 'deleted'));
  want(VM, 2, 'stopped');
  await reconciler.get(VM)?.idle();
  assert.equal(observations.at(-1)?.status, 'deleted');
});

it('a deletion hurries a stop that another operation was to follow', { timeout: HURRIED_MS }, async () => {
  const { reconciler, observations, want } = await opened();
  want(VM, 1, 'running');
  await reconciler.get(VM)?.idle();
  want(VM, 2, 'stopped');
  await sleep(50);
  want(VM, 3, 'running');
  want(VM, 4, 'deleted');
  await reconciler.get(VM)?.idle();
  assert.equal(observations.at(-1)?.status, 'deleted');
});

it('a guest that powers itself off while it is being paused is stopped', async () => {
  const { host, reconciler, observations, want } = await opened();
  want(VM, 1, 'running');
  await reconciler.get(VM)?.idle();
  host.live.suspend = async () => {
    host.events?.onExit({ reason: 'the VMM ended', guestEnd: 'the guest powered itself off' });
    throw new Error('the VMM does not answer');
  };
  want(VM, 2, 'paused');
  await reconciler.get(VM)?.idle();
  const { status, error } = observations.at(-1) ?? {};
  assert.deepEqual({ status, error }, { status: 'stopped', error: 'the guest powered itself off' });
});

it("a guest's clock is set again until it has succeeded", async () => {
  const { host, reconciler, want } = await opened();
  want(VM, 1, 'running');
  await reconciler.get(VM)?.idle();
  const call = mock.fn(async () => {
    if (call.mock.callCount() < 1) throw new Error('the guest does not answer');
  });
  host.live.setClock = call;
  mock.timers.enable({ apis: ['setTimeout'] });
  try {
    host.events?.onClockOff();
    for (let ms = 0; ms < 5_000 && call.mock.callCount() < 2; ms += 500) {
      await new Promise((resolve) => setImmediate(resolve));
      mock.timers.tick(500);
    }
    assert.equal(call.mock.callCount(), 2);
    mock.timers.tick(300_000);
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(call.mock.callCount(), 2, 'it had succeeded');
  } finally {
    mock.timers.reset();
  }
});

it('an unreadable record, whose VM cannot be ended, prevents no other from being re-attached', async () => {
  const state = await mkdtemp(join(folder, 'state-'));
  await writeFile(join(state, 'not an id.json'), '');
  const host = new PaperHost();
  host.end = async () => {
    throw new Error('not an id of a VM');
  };
  const reconciler = new Reconciler({
    operations: new OperationMetrics(),
    host: host as unknown as SandboxHost,
    records: new RecordStore(state),
    quarantine: quarantineIn(state),
    report: () => undefined,
    log: pino({ enabled: false }),
  });
  assert.deepEqual(await reconciler.load(), new Set(['not an id']));
  await reconciler.recover();
});

it('what has become of a sandbox of the previous runner is not known until it was adopted', async () => {
  const state = await mkdtemp(join(folder, 'state-'));
  const previous = await opened(state);
  previous.want(VM, 1, 'running');
  await previous.reconciler.get(VM)?.idle();
  await previous.reconciler.detach();
  const { reconciler, host } = await opened(state);
  const found = Promise.withResolvers<void>();
  host.adopt = async () => {
    await found.promise;
    return host.live as unknown as LiveSandbox;
  };
  const recovered = reconciler.recover();
  const known = (): boolean[] => [VM, OTHER].map((vmId) => reconciler.isKnown(vmId));
  assert.deepEqual(known(), [false, true]);
  found.resolve();
  await recovered;
  assert.deepEqual(known(), [true, true]);
  assert.ok(reconciler.get(VM)?.live);
});

it('nothing starts once the service stops', async () => {
  const { host, reconciler, want } = await opened();
  want(VM, 1, 'running');
  await reconciler.get(VM)?.idle();
  host.live.shutDown = async () => undefined;
  const drained = reconciler.drain('the service was stopped');
  want(OTHER, 1, 'running');
  await drained;
  want(VM, 2, 'running');
  await reconciler.get(VM)?.idle();
  await reconciler.get(OTHER)?.idle();
  assert.deepEqual(host.booted, [VM]);
  assert.equal(reconciler.get(VM)?.observation.status, 'stopped');
});

/** Finds a VM again whose agent is at that socket. */
async function adopt(agentSocketPath: string, detach = (): void => undefined): Promise<LiveSandbox> {
  const no = async (): Promise<boolean> => false;
  const vm = {
    dir: folder,
    onExit: () => undefined,
    onUnblocked: () => undefined,
    isBlockedOnSpace: no,
    isRunning: async () => true,
    detach,
  };
  const host = new MachineHost({
    machines: { adopt: async () => ({ vm, agentSocketPath }) },
    network: { adopt: () => ({}) },
    logsFolder: join(folder, 'logs'),
    log: pino({ enabled: false }),
  } as unknown as MachineHostOptions);
  const assignment = { vm_id: VM, generation: 1, desired: 'running', spec: SPEC } as const;
  return await host.adopt(assignment, {}, { onExit: () => undefined, onClockOff: () => undefined });
}

it('a micro-VM that cannot be adopted is detached before it is ended', async () => {
  let detached = false;
  const adopted = adopt(join(folder, 'nobody'), () => {
    detached = true;
  });
  await assert.rejects(adopted, /cannot connect to the guest/);
  assert.ok(detached);
});

it('a guest that reports that it is frozen, and nothing more, is not waited for at length', async () => {
  const hello = {
    protocol: 1,
    agent: 'x',
    boot_id: 'y',
    configured: true,
    frozen: true,
    entrypoint: { state: 'none' },
  };
  const patience = new AbortController();
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.once('data', (asked: Buffer) => {
      const { nonce } = JSON.parse(asked.subarray(asked.indexOf('{')).toString()) as { nonce: string };
      socket.write(Buffer.concat([MAGIC, encodeMessage(FrameType.hello, 0, { ...hello, nonce })]));
      // Asked for more than that, it responds only after the caller has given up.
      socket.once('data', () => patience.abort());
    });
  }).listen(join(folder, 'agent'));
  const timeout = AbortSignal.timeout.bind(AbortSignal);
  mock.method(AbortSignal, 'timeout', (ms: number) =>
    ms === ADOPT_DEADLINE_MS ? patience.signal : timeout(ms),
  );
  try {
    await assert.rejects(adopt(join(folder, 'agent')), /reconfigure was cancelled/);
  } finally {
    mock.restoreAll();
    server.close();
  }
});
