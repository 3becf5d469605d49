import { existsSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import {
  DOCKER_CAPABILITY,
  DOCKERFILE_CAPABILITY,
  type RunnerFacts,
  USAGE_HISTORY_CAPABILITY,
} from '@releap/contract';
import { OBJECT_STORES_CAPABILITY, VOLUMES_CAPABILITY, type HeldMemory } from '@releap/contract/runner';
import { virtiofsdFolder } from '@releap/contract/volume-probe';
import { ArtifactReconciler } from './artifact/artifact-reconciler.ts';
import { StoreClient } from './artifact/store-client.ts';
import { registerDataRoutes } from './assembly/data-routes.ts';
import { runnerFacts } from './assembly/facts.ts';
import { startImages } from './assembly/images.ts';
import { createWarmVms } from './assembly/warm-vms.ts';
import { ImageBuilds } from './build/image-builds.ts';
import { CgroupTree } from './cgroup/cgroup-tree.ts';
import { startDataServer } from './data/data-server.ts';
import { pinnedProgram } from './host/pinned-program.ts';
import { StoreProgram } from './host/store-program.ts';
import { ControlIdentity } from './identity/control-identity.ts';
import { dataTokenVerifier } from './identity/data-token.ts';
import { ControlLink } from './link/control-link.ts';
import { Deployment } from './link/deployment.ts';
import { LogRetention } from './logs/log-retention.ts';
import { builtGuest, guestWithKernel } from './machine/open-machines.ts';
import { Admission, openMachines, type WarmPools } from './machine/index.ts';
import { GUEST } from './network/address-plan.ts';
import type { MemoryBudget } from './memory/memory-budget.ts';
import { OperationMetrics } from './metrics/operation-metrics.ts';
import { runnerMetrics } from './metrics/runner-metrics.ts';
import { CounterReader } from './metering/counter-reader.ts';
import { UsageMeter } from './metering/usage-meter.ts';
import { UsageReporter } from './metering/usage-reporter.ts';
import { UsageUplink } from './metering/usage-uplink.ts';
import { SecretsClient } from './network/intercept/secrets-client.ts';
import { Network } from './network/network.ts';
import { toSandboxReport, toSnapshotReport } from './reconcile/assignment.ts';
import { Ballast } from './disk/ballast.ts';
import { freeForDisksMib } from './disk/check-space.ts';
import { fileSystemsOf, SpaceWatch } from './disk/space-watch.ts';
import { ClockStepDetector } from './reconcile/clock-step-detector.ts';
import { sandboxHandler, snapshotHandler } from './reconcile/kind-handlers.ts';
import { MachineHost } from './reconcile/machine-host.ts';
import { Absences } from './quarantine/absences.ts';
import { Quarantine } from './quarantine/quarantine.ts';
import { QuarantinePurge } from './quarantine/quarantine-purge.ts';
import { Reconciler } from './reconcile/reconciler.ts';
import { SnapshotReconciler } from './reconcile/snapshot-reconciler.ts';
import { RecordStore } from './reconcile/sandbox-record.ts';
import { runnerId } from './runner-id.ts';
import { DEFAULT_MACHINE_SIZE, type RunnerOptions } from './runner-options.ts';
import { AddressStreams } from './ports/address-streams.ts';
import { VolumeProbe } from './volume/probe-volumes.ts';
import { VolumeClient } from './volume/volume-client.ts';
import { VolumeCopies } from './volume/volume-copies.ts';
import { VolumeReconciler } from './volume/volume-reconciler.ts';
import { Voltree, VOLTREE, VOLTREE_CORES } from './volume/voltree.ts';
import { XfsDisks } from './volume/xfs-disks.ts';

/** User of the VMMs that boot templates. No sandbox has it, and no usual account. */
const TEMPLATE_UID = 0x6ffe_0000;
const DRAIN_DEADLINE_MS = 30_000;
/** Interval at which a host that is short of memory releases cached memory. */
const RELIEF_MS = 5_000;

export interface Runner {
  facts: RunnerFacts;
  /** Resolves when the control plane has accepted this process for the first time. What it said of an earlier one is over then. */
  linked: Promise<void>;
  /** Closes everything. Sandboxes and their micro-VMs continue, and a later runner adopts them. */
  close(): Promise<void>;
  /** Ends every micro-VM and removes all that was created for them: the service stops. */
  shutDown(): Promise<void>;
}

/**
 * Starts the host agent: detects the host's capabilities, adopts the VMs of an earlier run, and reconciles with the desired state
 * of the control plane. Ready once a create of the default machine size needs no cold boot.
 */
export async function startRunner(options: RunnerOptions): Promise<Runner> {
  const { home, cacheDir, buildDir, guestKernel, log } = options;
  const guest =
    guestKernel === undefined ? builtGuest(buildDir) : await guestWithKernel(buildDir, guestKernel);
  const folder = join(home, 'runner');
  const logsFolder = join(folder, 'logs');
  await mkdir(folder, { recursive: true, mode: 0o700 });
  const admission = new Admission();
  const addresses = new AddressStreams(options.previewUid);
  const secrets = new SecretsClient({
    controlUrl: options.controlUrl,
    credential: () => identity.credential(),
  });
  // Beside it a trial of KVM may take its time.
  const openedNetwork = Network.open({
    clientUid: options.previewUid,
    onRelease: (vmId) => addresses.end(vmId),
    dir: join(folder, 'network'),
    identity: home,
    listenHost: options.listenHost,
    tenantPrivateNetworks: options.tenantPrivateNetworks,
    deniedPath: (vmId) => join(logsFolder, vmId, 'denied.json'),
    secrets: {
      source: secrets,
      extraCa: options.egressCa,
    },
    stores: {
      changed: (sandboxes) => secrets.changedStores(sandboxes),
      privateHosts: options.storePrivateHosts ?? [],
      extraCa: options.egressCa,
    },
    spare: (signal) => admission.spare(signal),
    log: log.child({ part: 'network' }),
  });
  const [id, { machines, cgroups, facts: accelerator, vmms, kvmWatch }, network, volumeProbe] =
    await Promise.all([
      runnerId(join(folder, 'id')),
      openMachines({
        home,
        folder: join(folder, 'vms'),
        cacheDir,
        buildDir,
        ...guest,
        guestNetwork: { mac: GUEST.mac, address: `${GUEST.ip}/${GUEST.prefix},${GUEST.gatewayIp}` },
        templateUid: TEMPLATE_UID,
        accelerator: options.accelerator,
        signal: options.signal,
        defaultShape: DEFAULT_MACHINE_SIZE,
        log: log.child({ part: 'vmm' }),
      }),
      openedNetwork,
      VolumeProbe.open(buildDir, log.child({ part: 'volume' })),
    ]).catch(async (error: unknown) => {
      const network = await openedNetwork.catch(() => undefined);
      if ((await network?.abandon()) !== true) throw error;
      throw new Error('the start failed, and sandboxes of an earlier run continue', { cause: error });
    });
  const identity = await ControlIdentity.open({
    folder,
    runnerId: id,
    controlUrl: options.controlUrl,
    joinToken: options.joinToken,
    log: log.child({ part: 'link' }),
  });
  const quarantineFolder = join(folder, 'quarantine');
  const quarantine = (kind: string, source: string): Quarantine =>
    new Quarantine({
      folder: join(quarantineFolder, kind),
      source: join(folder, source),
      log: log.child({ part: 'quarantine' }),
    });
  const sandboxQuarantine = quarantine('sandboxes', 'vms');
  const snapshotQuarantine = quarantine('snapshots', 'snapshots');
  const volumeQuarantine = quarantine('volumes', 'volumes');
  const quarantines = [sandboxQuarantine, snapshotQuarantine, volumeQuarantine];
  const store = new StoreClient({ controlUrl: options.controlUrl, credential: () => identity.credential() });
  const { images, caches, fetcher } = await startImages({
    options,
    folder,
    machines,
    network,
    admission,
    store,
    snapshotQuarantine,
  });
  const buildLogsFolder = join(folder, 'build-logs');
  const buildLogPath = (jobId: string): string => join(buildLogsFolder, jobId, 'build.log');
  const { pools, warm } = createWarmVms({ options, machines, network, admission, images });
  const meter: UsageMeter = new UsageMeter({
    folder: join(folder, 'usage'),
    reader: new CounterReader(cgroups),
    onPass: () => uplink.pump(),
    onEdge: (vmId, counter) => usage.tell(vmId, counter),
    log: log.child({ part: 'metering' }),
  });
  const uplink = new UsageUplink({
    spool: meter.spool,
    send: (message) => link.usageHistory(message),
  });
  // Apart from those of the VMs, all of which a reconciliation ends that no record names.
  const volumeGroups = await CgroupTree.open(join(home, 'volumes'), VOLTREE_CORES);
  for (const left of await volumeGroups.list()) await volumeGroups.destroy(left);
  const pinned = async (program: string): Promise<string> =>
    await pinnedProgram(program, join(folder, 'programs'));
  // At the first start of the service, set-up makes it later, with all that volumes need.
  if (existsSync(virtiofsdFolder(buildDir))) await pinned(VOLTREE);
  const storeProgram = await StoreProgram.open(buildDir, join(folder, 'programs'));
  const copies = new VolumeCopies({
    folder: join(folder, 'volumes'),
    quarantine: volumeQuarantine,
    client: new VolumeClient(store),
    voltree: new Voltree(() => pinned(VOLTREE), volumeGroups),
    disks: new XfsDisks(),
    hostName: id.slice(0, 8),
    commitEveryMs: options.volumeCommitMs,
    log: log.child({ part: 'volume' }),
  });
  const host = new MachineHost({
    machines,
    meter,
    artifacts: fetcher,
    images,
    network,
    warm,
    volumes: copies,
    storeProgram,
    admission,
    logsFolder,
    listenHost: options.listenHost,
    log: log.child({ part: 'sandbox' }),
  });
  await Promise.all(quarantines.map((one) => one.open()));
  const facts = await runnerFacts({ capacity: options.capacity, folder, accelerator, vmms, machines });

  let ready = false;
  const linked = Promise.withResolvers<void>();
  const operations = new OperationMetrics();
  const reconciler: Reconciler = new Reconciler({
    host,
    operations,
    records: new RecordStore(join(folder, 'state')),
    quarantine: sandboxQuarantine,
    report: (observation) => link.report(toSandboxReport(observation)),
    log: log.child({ part: 'sandbox' }),
  });
  const snapshots = new SnapshotReconciler({
    folders: machines.snapshots,
    quarantine: snapshotQuarantine,
    compact: async (id) => {
      await machines.compaction.snapshot(id);
      machines.digests.look();
    },
    find: (vmId) => reconciler.get(vmId),
    report: (observation) => link.report(toSnapshotReport(observation)),
    log: log.child({ part: 'snapshot' }),
  });
  const volumes = new VolumeReconciler({
    copies,
    report: (report) => link.report(report),
    log: log.child({ part: 'volume' }),
  });
  const absences = new Absences({
    kinds: [reconciler, snapshots, volumes],
    folder: quarantineFolder,
    log: log.child({ part: 'quarantine' }),
  });
  const builds = new ImageBuilds({
    images,
    logPath: buildLogPath,
    report: (report) => link.report(report),
    log: log.child({ part: 'build' }),
  });
  const artifacts = new ArtifactReconciler({
    client: store,
    fetcher,
    images,
    snapshots: machines.snapshots,
    snapshotReconciler: snapshots,
    report: (report) => link.report(report),
    log: log.child({ part: 'artifact' }),
  });
  const link = new ControlLink({
    controlUrl: options.controlUrl,
    credential: () => identity.credential(),
    deployment: Deployment.open(join(folder, 'deployment')),
    hello: () => ({
      runner_id: id,
      region: options.region,
      data_url: dataServer.url,
      facts,
      capabilities: [
        ...(volumeProbe.works ? [VOLUMES_CAPABILITY] : []),
        ...(storeProgram.isMade ? [OBJECT_STORES_CAPABILITY] : []),
        ...(options.builds.parallel > 0 ? [DOCKERFILE_CAPABILITY, DOCKER_CAPABILITY] : []),
      ],
    }),
    isReady: () => ready,
    heldMemory: () => heldMemory(machines.memoryBudget, pools),
    // The first is that of the sandboxes' disks.
    freeDiskMib: () => spaces[0]?.last && freeForDisksMib(spaces[0].last),
    handlers: [sandboxHandler(reconciler, log), snapshotHandler(snapshots), builds, artifacts, volumes],
    onLinked: () => {
      absences.linked();
      linked.resolve();
    },
    onSynced: () => absences.synced(),
    onCapabilities: (capabilities) => uplink.linked(capabilities.includes(USAGE_HISTORY_CAPABILITY)),
    onUsageStored: (seq) => uplink.stored(seq),
    log: log.child({ part: 'link' }),
  });
  const usage: UsageReporter = new UsageReporter({
    running: () => reconciler.running(),
    read: async (vmId) => meter.cpu(vmId),
    report: (readings) => link.usage(readings),
    log: log.child({ part: 'metering' }),
  });
  // The cache may be on a file system of its own, and is written to as fast.
  const spaces: SpaceWatch[] = (await fileSystemsOf([folder, cacheDir])).map(
    (watched) =>
      new SpaceWatch({
        folder: watched,
        onShort: () => reconciler.pauseForSpace(() => spaces.some((space) => space.isShort)),
        ballast: new Ballast(watched),
        log: log.child({ part: 'disk' }),
      }),
  );
  const clock = new ClockStepDetector(() => reconciler.setClocks());
  const logRetention = new LogRetention(logsFolder, (vmId) => reconciler.get(vmId) !== undefined, log);
  const buildLogRetention = new LogRetention(
    buildLogsFolder,
    (jobId) => builds.log(jobId) !== undefined,
    log,
  );
  const dataServer = await startDataServer({
    socketPath: join(home, 'run', 'runner.sock'),
    verify: dataTokenVerifier(identity),
    metrics: runnerMetrics({
      starts: [admission, () => pools.stats, images],
      operations,
      reconciler,
      network,
      memoryBudget: machines.memoryBudget,
      spaces,
      quarantines: { sandbox: sandboxQuarantine, snapshot: snapshotQuarantine, volume: volumeQuarantine },
    }),
    register: (app) =>
      registerDataRoutes(app, {
        host,
        reconciler,
        network,
        storeProgram,
        meter,
        builds,
        buildLogPath,
        addresses,
        log,
      }),
    log,
  });

  // Before anything new is made: VMs without a record are removed, and those with one are adopted or ended.
  const records = await reconciler.load();
  await machines.reclaim(records, (vmId) => sandboxQuarantine.park(vmId));
  await network.reclaim(records);
  await copies.recover();
  await reconciler.recover();
  copies.start((vmId) => reconciler.get(vmId)?.live !== undefined);
  meter.retain((vmId) => reconciler.get(vmId)?.live !== undefined);
  await artifacts.open(join(folder, 'snapshots'));
  const purge = new QuarantinePurge(quarantines, options.quarantineDays, log);
  link.start();
  volumeProbe.watch(() => link.renew());
  storeProgram.watch(() => link.renew());
  usage.start();
  meter.start();
  const warmed = (async () => {
    await machines.templates.ensure(DEFAULT_MACHINE_SIZE);
    ready = true;
    link.heartbeat();
    pools.start();
    machines.digests.start();
  })();
  warmed.catch((error: unknown) => {
    if (!machines.templates.isStopped)
      log.error({ err: error, kernel: guest.kernel }, 'no micro-VM can be started on this machine');
  });

  const relief = setInterval(() => {
    machines.memoryBudget.relieve().catch((error: unknown) => log.warn({ err: error }, 'caches keep memory'));
  }, RELIEF_MS).unref();

  const closeParts = async (): Promise<void> => {
    clearInterval(relief);
    await usage.close();
    await meter.close();
    await Promise.all([link.close(), volumeProbe.close(), kvmWatch?.close()]);
    storeProgram.close();
    absences.close();
    purge[Symbol.dispose]();
    volumes.close();
    await builds.close();
    await artifacts.close();
    await dataServer.close();
    logRetention.close();
    buildLogRetention.close();
    caches.close();
    clock.close();
    for (const space of spaces) space.close();
    // Interrupts all starts before cold boots are cancelled: one that waits for a cold boot is continued by the next runner, and
    // does not fail.
    const detached = reconciler.detach();
    detached.catch(() => undefined);
    await reconciler.moved();
    machines.templates.stop();
    await warmed.catch(() => undefined);
    await Promise.all([detached, machines.digests.close(), pools.close()]);
    await copies.detach();
    await machines.templates.close();
    await images.close();
  };
  const removeAll = async (): Promise<void> => {
    await copies.unmount();
    await network.close();
    await cgroups.close();
    await volumeGroups.close();
  };
  return {
    facts,
    linked: linked.promise,
    close: async () => {
      await closeParts();
      // A home that is never started again leaves nothing on the machine.
      if (reconciler.isEmpty) return await removeAll();
      await network.detach();
      // Last: it may take long, and nothing else is lost if this process is killed meanwhile.
      await machines.persistent.allDurable();
    },
    shutDown: async () => {
      ready = false;
      link.heartbeat();
      await reconciler.drain('the service was stopped');
      await copies.drain(AbortSignal.timeout(DRAIN_DEADLINE_MS));
      await link.flushed(AbortSignal.timeout(DRAIN_DEADLINE_MS));
      await closeParts();
      await removeAll();
      await machines.persistent.allDurable();
    },
  };
}

/** What heartbeats report: memory outside the guarantees of sandboxes. Waiting VMs are removed when the host needs their memory. */
function heldMemory({ held }: MemoryBudget, { mib }: WarmPools): HeldMemory {
  return { mem_mib: held.mem_mib + mib, reclaimable_mib: held.reclaimable_mib + mib };
}
