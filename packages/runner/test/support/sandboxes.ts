/** What a runner is made of, without its link to a control plane: tests play that. */
import assert from 'node:assert/strict';
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { DesiredState, ObservedStatus, SandboxSpec } from '@releap/contract';
import { ImageStore } from '../../src/image/image-store.ts';
import { Admission, openMachines, WarmPools, WarmVms } from '../../src/machine/index.ts';
import { builtGuest } from '../../src/machine/open-machines.ts';
import { CounterReader } from '../../src/metering/counter-reader.ts';
import { UsageMeter } from '../../src/metering/usage-meter.ts';
import { GUEST } from '../../src/network/address-plan.ts';
import { Network } from '../../src/network/network.ts';
import type { NetworkOptions } from '../../src/network/network-options.ts';
import type { Slot } from '../../src/network/slot.ts';
import { MachineHost } from '../../src/reconcile/machine-host.ts';
import { Orphans } from '../../src/quarantine/orphans.ts';
import { Quarantine } from '../../src/quarantine/quarantine.ts';
import { OperationMetrics } from '../../src/metrics/operation-metrics.ts';
import { Reconciler } from '../../src/reconcile/reconciler.ts';
import { SnapshotReconciler } from '../../src/reconcile/snapshot-reconciler.ts';
import type { HeldImage } from '../../src/reconcile/sandbox-host.ts';
import { RecordStore } from '../../src/reconcile/sandbox-record.ts';
import { readLog } from '../../src/logs/log-file.ts';
import { eventually, until } from '@releap/testing/eventually';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { LocalVolumes } from './local-volumes.ts';
import { BUILD_DIR, log } from './machines.ts';
import { SPEC } from './sandbox-spec.ts';
import type {
  Assignment,
  Observation,
  SnapshotAssignment,
  SnapshotObservation,
} from '../../src/reconcile/assignment.ts';

const PATIENCE_MS = 180_000;
const END_REPORTED_MS = 5_000;
const CONSOLE_TAIL_BYTES = 2_000;
const TEMPLATE_UID = 1_899_999_999;

/** The test images have no command of their own. This one says what happens to it. */
const ENTRYPOINT = [
  '/bin/sh',
  '-c',
  'trap "echo asked >> /entrypoint.log; exit 0" USR1; echo started >> /entrypoint.log; while :; do sleep 1000 & wait $!; done',
];

class TestHost extends MachineHost {
  override async acquireImage(...args: Parameters<MachineHost['acquireImage']>): Promise<HeldImage> {
    const image = await super.acquireImage(...args);
    return { ...image, config: { ...image.config, entrypoint: ENTRYPOINT, cmd: [], stopSignal: 'SIGUSR1' } };
  }
}

/** A guest whose clock has whole seconds has the right time, however long its answer takes. */
export async function assertClock(seconds: () => Promise<string>): Promise<void> {
  const asked = Date.now() / 1000;
  const said = Number(await seconds());
  const answered = Date.now() / 1000;
  assert.ok(said > asked - 3 && said < answered + 3, `the clock says ${said} from ${asked} to ${answered}`);
}

/** Runs in a network namespace that is the test's own (`isolateNetwork`). */
export class TestRunner {
  readonly home: string;
  readonly reconciler: Reconciler;
  readonly snapshots: SnapshotReconciler;
  readonly orphans: Orphans;
  readonly machines: Awaited<ReturnType<typeof openMachines>>['machines'];
  readonly network: Network;
  readonly pools: WarmPools;
  readonly meter: UsageMeter;
  readonly volumes: LocalVolumes;
  /** Everything that was reported, oldest first. */
  readonly observations: Observation[] = [];
  readonly snapshotObservations: SnapshotObservation[] = [];
  /** Changes to what its sandboxes ask for. */
  spec: SandboxSpec = SPEC;
  readonly #cgroups: Awaited<ReturnType<typeof openMachines>>['cgroups'];
  readonly #images: ImageStore;
  readonly #quarantines: { sandboxes: Quarantine; snapshots: Quarantine };

  private constructor(
    home: string,
    opened: Awaited<ReturnType<typeof openMachines>>,
    network: Network,
    images: ImageStore,
    waiting: number,
  ) {
    this.home = home;
    this.machines = opened.machines;
    this.#cgroups = opened.cgroups;
    this.network = network;
    this.#images = images;
    const quarantine = (kind: string, source: string): Quarantine =>
      new Quarantine({ folder: join(home, 'quarantine', kind), source: join(home, source), log });
    this.#quarantines = {
      sandboxes: quarantine('sandboxes', 'vms'),
      snapshots: quarantine('snapshots', 'snapshots'),
    };
    this.volumes = new LocalVolumes(join(home, 'volumes'));
    const admission = new Admission();
    const budgetMib = 512;
    this.pools = new WarmPools({ budgetMib, idleCapacity: (signal) => admission.idleCapacity(signal), log });
    const warm = new WarmVms<Slot>({
      machines: opened.machines,
      pools: this.pools,
      slots: network,
      shape: { vcpus: SPEC.vcpus, memMib: SPEC.mem_mib },
      size: waiting,
      diskMaxMib: 4096,
    });
    this.meter = new UsageMeter({
      folder: join(home, 'usage'),
      reader: new CounterReader(opened.cgroups),
      log,
    });
    this.reconciler = new Reconciler({
      operations: new OperationMetrics(),
      host: new TestHost({
        machines: opened.machines,
        meter: this.meter,
        artifacts: {
          hasSnapshot: async (id) => (await opened.machines.snapshots.load(id)) !== undefined,
          ensureSnapshot: (id) => Promise.reject(new Error(`snapshot ${id} is not on this machine any more`)),
        },
        images,
        network,
        warm,
        volumes: this.volumes,
        storeProgram: { find: () => Promise.reject(new Error('no sandbox here mounts an object store')) },
        admission,
        logsFolder: join(home, 'logs'),
        listenHost: '127.0.0.1',
        log,
      }),
      records: new RecordStore(join(home, 'state')),
      quarantine: this.#quarantines.sandboxes,
      report: (observation) => this.observations.push(observation),
      log,
    });
    this.snapshots = new SnapshotReconciler({
      folders: opened.machines.snapshots,
      quarantine: this.#quarantines.snapshots,
      compact: (id) => opened.machines.compaction.snapshot(id),
      find: (vmId) => this.reconciler.get(vmId),
      driver: opened.platform.driver,
      report: (observation) => this.snapshotObservations.push(observation),
      log,
    });
    this.orphans = new Orphans({
      kinds: [this.reconciler, this.snapshots],
      folder: join(home, 'quarantine'),
      log,
    });
  }

  /**
   * As a runner starts: re-attaches to what an earlier one of the same home has left.
   * @param options.waiting VMs that are kept waiting for sandboxes
   * @param options.nameServer `address:port` of the one that sandboxes' questions are passed on to
   */
  static async open(
    home: string,
    options: {
      buildDir?: string;
      deviceModel?: number;
      systemDisk?: string;
      waiting?: number;
      nameServer?: string;
      network?: Partial<NetworkOptions>;
    } = {},
  ): Promise<TestRunner> {
    const { buildDir = BUILD_DIR } = options;
    await mkdir(home, { recursive: true });
    const [opened, network] = await Promise.all([
      openMachines({
        home,
        folder: join(home, 'vms'),
        cacheDir: TEST_CACHE,
        buildDir,
        ...builtGuest(buildDir),
        ...options,
        guestNetwork: { mac: GUEST.mac, address: `${GUEST.ip}/${GUEST.prefix},${GUEST.gatewayIp}` },
        templateUid: TEMPLATE_UID,
        log,
      }),
      Network.open({
        dir: join(home, 'network'),
        identity: home,
        listenHost: '127.0.0.1',
        slots: 12,
        withholdMs: 20,
        ahead: 1,
        dnsUpstreams: [options.nameServer ?? '127.0.0.1'],
        log,
        ...options.network,
      }),
    ]);
    const images = new ImageStore({
      cacheDir: TEST_CACHE,
      packagesDir: join(BUILD_DIR, 'packages'),
      log,
    });
    await images.start();
    const runner = new TestRunner(home, opened, network, images, options.waiting ?? 0);
    await runner.#quarantines.sandboxes.open();
    await runner.#quarantines.snapshots.open();
    const records = await runner.reconciler.load();
    await runner.machines.reclaim(records, (vmId) => runner.#quarantines.sandboxes.park(vmId));
    await runner.network.reclaim(records);
    await runner.reconciler.recover();
    runner.pools.start();
    return runner;
  }

  /** Resolves when a VM and a VMM wait for sandboxes. */
  async warmedUp(): Promise<void> {
    await eventually('waiting VMs', async () =>
      this.pools.stats.every(({ waiting, wanted }) => waiting > 0 && waiting >= wanted) ? true : undefined,
    );
  }

  want(vmId: string, generation: number, desired: DesiredState, more: Partial<Assignment> = {}): void {
    const assignment = { vm_id: vmId, generation, desired, spec: this.spec, ...more };
    this.reconciler.assign(assignment);
  }

  /** A link is connected, and control names these and nothing else. */
  async sync(assignments: Assignment[], snapshots: SnapshotAssignment[] = []): Promise<void> {
    this.reconciler.linked();
    this.snapshots.linked();
    for (const snapshot of snapshots) this.snapshots.assign(snapshot);
    for (const assignment of assignments) this.reconciler.assign(assignment);
    this.orphans.synced();
    await this.orphans.idle();
    await this.snapshots.idle();
    await this.reconciler.moved();
  }

  /** The outcome of a snapshot. */
  async snapshot(snapshot: SnapshotAssignment): Promise<SnapshotObservation> {
    this.snapshots.assign(snapshot);
    await this.snapshots.idle();
    const found = this.snapshotObservations.findLast(
      ({ snapshot_id, generation }) =>
        snapshot_id === snapshot.snapshot_id && generation === snapshot.generation,
    );
    if (found === undefined) throw new Error('the snapshot was not reported');
    return found;
  }

  /** The first report of a generation that says one of these. @throws after minutes, or when it has failed */
  async reported(generation: number, ...wanted: (ObservedStatus | { of: string })[]): Promise<Observation> {
    for (const end = Date.now() + PATIENCE_MS; ; ) {
      const ids = wanted.flatMap((one) => (typeof one === 'string' ? [] : [one.of]));
      const reports = this.observations.filter(
        (observation) =>
          observation.generation === generation && (ids.length === 0 || ids.includes(observation.vm_id)),
      );
      const found = reports.find(({ status }) => wanted.includes(status));
      if (found) return found;
      const failed = reports.find(({ status }) => status === 'failed');
      if (failed || Date.now() > end) {
        throw new Error(`expected ${JSON.stringify(wanted)} and got ${JSON.stringify(reports)}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
  }

  /** Output of a shell command in the guest; throws when it fails. */
  async sh(vmId: string, shell: string): Promise<string> {
    const live = this.reconciler.get(vmId)?.live;
    if (live === undefined) throw new Error('the sandbox does not run');
    const child = (await live.guest()).exec({ shell });
    let text = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (chunk: Buffer) => {
        text += chunk.toString();
      });
    }
    const { exitCode } = await this.explained(vmId, child.exit);
    if (exitCode !== 0) throw new Error(`${shell} ended with ${exitCode}: ${text}`);
    return text;
  }

  /** What a guest answers; when its connection breaks, the error has what was reported of it and the end of its console. */
  async explained<T>(vmId: string, answer: Promise<T>): Promise<T> {
    try {
      return await answer;
    } catch (error) {
      const last = () => this.observations.findLast((observation) => observation.vm_id === vmId);
      // A VM's end is reported a moment after its connection has broken.
      await until(() => last()?.status !== 'running', END_REPORTED_MS).catch(() => undefined);
      const console = await readLog(join(this.home, 'logs', vmId, 'console.log'));
      const { status, error: reason } = last() ?? {};
      throw new Error(
        `${String(error)}; the sandbox is ${status} (${reason}); its console:\n${console?.subarray(-CONSOLE_TAIL_BYTES).toString()}`,
        { cause: error },
      );
    }
  }

  async #close(): Promise<void> {
    await this.pools.close();
    await this.machines.templates.close();
    await this.#images.close();
  }

  /** Ends without ending the VMs. */
  async detach(): Promise<void> {
    await this.pools.close();
    await this.reconciler.detach();
    await this.network.detach();
    await this.#close();
  }

  /** Ends as with its service. */
  async shutDown(): Promise<void> {
    await this.pools.close();
    await this.reconciler.drain('the service was stopped');
    await this.network.close();
    await this.#close();
    await this.#cgroups.close();
  }

  /** Removes everything, in any state that a test has left it in. */
  async dispose(): Promise<void> {
    await this.pools.close();
    await this.reconciler.detach().catch(() => undefined);
    await this.machines.reclaim(new Set());
    await this.volumes.dispose();
    await this.network.close();
    await this.#close();
    await this.#cgroups.close();
    await rm(this.home, { recursive: true, force: true });
  }
}
