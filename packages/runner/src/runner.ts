import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import {
  DOCKER_CAPABILITY,
  DOCKERFILE_CAPABILITY,
  type RunnerFacts,
  USAGE_HISTORY_CAPABILITY,
} from '@releap/contract';
import {
  MOVES_CAPABILITY,
  OBJECT_STORES_CAPABILITY,
  REVERSE_CAPABILITY,
  VOLUMES_CAPABILITY,
  type HeldMemory,
  type Report,
} from '@releap/contract/runner';
import { ControlAccess, HostCertificate } from '@releap/certificates/hosts';
import { ArtifactReconciler } from './artifact/artifact-reconciler.ts';
import { StoreClient } from './artifact/store-client.ts';
import { registerDataRoutes } from './assembly/data-routes.ts';
import { runnerFacts } from './assembly/facts.ts';
import { startImages } from './assembly/images.ts';
import { openNetwork } from './assembly/network.ts';
import { openVolumes } from './assembly/volumes.ts';
import { createWarmVms } from './assembly/warm-vms.ts';
import { ImageBuilds } from './build/image-builds.ts';
import { startDataServer } from './data/data-server.ts';
import { ReverseDialer } from './data/reverse-dialer.ts';
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
import { toSandboxReport, toSnapshotReport } from './reconcile/assignment.ts';
import { Ballast } from './disk/ballast.ts';
import { freeForDisksMib } from './disk/check-space.ts';
import { fileSystemsOf, SpaceWatch } from './disk/space-watch.ts';
import { ClockStepDetector } from './reconcile/clock-step-detector.ts';
import { sandboxHandler, snapshotHandler } from './reconcile/kind-handlers.ts';
import { MachineHost } from './reconcile/machine-host.ts';
import { Orphans } from './quarantine/orphans.ts';
import { Quarantine } from './quarantine/quarantine.ts';
import { QuarantinePurge } from './quarantine/quarantine-purge.ts';
import { Reconciler } from './reconcile/reconciler.ts';
import { SnapshotReconciler } from './reconcile/snapshot-reconciler.ts';
import { RecordStore } from './reconcile/sandbox-record.ts';
import { runnerId } from './runner-id.ts';
import { DEFAULT_MACHINE_SIZE, type RunnerOptions } from './runner-options.ts';
import { AddressStreams } from './ports/address-streams.ts';
import { VolumeProbe } from './volume/probe-volumes.ts';
import { VolumeReconciler } from './volume/volume-reconciler.ts';

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
  const { home, cacheDir, buildDir, guestKernel, controlUrl, log } = options;
  const guest =
    guestKernel === undefined ? builtGuest(buildDir) : await guestWithKernel(buildDir, guestKernel);
  const folder = join(home, 'runner');
  const logsFolder = join(folder, 'logs');
  const buildLogsFolder = join(folder, 'build-logs');
  const programs = join(folder, 'programs');
  await mkdir(folder, { recursive: true, mode: 0o700 });

  /** Of a start that fails, nothing stays that no sandbox of an earlier run needs. */
  await using opened = new AsyncDisposableStack();
  const whenFailed = (close: () => Promise<unknown>): void =>
    opened.defer(async () => {
      await close().catch((err: unknown) => log.warn({ err }, 'the start failed, and has left something'));
    });

  // The way to control. Nothing is sent before the link is started.
  const id = await runnerId(join(folder, 'id'));
  const control = new ControlAccess(controlUrl, {
    file: join(folder, 'control-ca.pem'),
    fingerprint: options.controlFingerprint,
  });
  const { fetch } = control;
  const identity = await ControlIdentity.open({
    folder,
    runnerId: id,
    controlUrl,
    fetch,
    joinToken: options.joinToken,
    log: log.child({ part: 'link' }),
  });
  const credential = (): Promise<string> => identity.credential();
  const certificate = new HostCertificate({
    issue: (request) => identity.issueCertificate(request),
    log: log.child({ part: 'data' }),
  });
  certificate.onChange(({ roots }) => {
    control
      .follow(roots)
      .catch((error: unknown) => log.warn({ err: error }, 'the roots of control were not stored'));
  });
  // Where it is on another machine, gateways are too, and must be able to reach this one.
  const reverse =
    options.dataListen === undefined && controlUrl.startsWith('https:')
      ? new ReverseDialer({
          runnerId: id,
          certificate,
          controlHost: new URL(controlUrl).hostname,
          log: log.child({ part: 'data' }),
        })
      : undefined;
  const secrets = new SecretsClient({ controlUrl, credential, fetch });
  const store = new StoreClient({ controlUrl, credential, fetch });
  const link = new ControlLink({
    controlUrl,
    async credential() {
      const token = await identity.credential();
      // Control leads gateways here as soon as there is a link. One that cannot be issued is logged, and requested again.
      if (options.dataListen !== undefined || reverse !== undefined || (await control.isPinned()))
        await certificate.get().catch(() => undefined);
      return token;
    },
    dial: () => control.peer.dial(),
    deployment: Deployment.open(join(folder, 'deployment')),
    log: log.child({ part: 'link' }),
  });

  // The host: micro-VMs, networks, images, volumes.
  const admission = new Admission();
  const addresses = new AddressStreams(options.previewUid);
  // Beside it a trial of KVM may take its time.
  const openingNetwork = openNetwork({ options, folder, logsFolder, secrets, admission, addresses });
  whenFailed(async () => {
    const network = await openingNetwork.catch(() => undefined);
    if ((await network?.abandon()) === true)
      log.warn('the start failed, and sandboxes of an earlier run continue');
  });
  const openingMachines = openMachines({
    home,
    folder: join(folder, 'vms'),
    cacheDir,
    buildDir,
    ...guest,
    guestNetwork: { mac: GUEST.mac, address: `${GUEST.ip}/${GUEST.prefix},${GUEST.gatewayIp}` },
    templateUid: TEMPLATE_UID,
    accelerator: options.accelerator,
    cpuModel: options.cpuModel,
    diskLimit: options.diskLimit,
    signal: options.signal,
    defaultShape: DEFAULT_MACHINE_SIZE,
    log: log.child({ part: 'vmm' }),
  });
  whenFailed(async () => {
    const found = await openingMachines.catch(() => undefined);
    await found?.kvmWatch?.close();
    await found?.cgroups.abandon();
  });
  const [{ machines, cgroups, facts: accelerator, platform, kvmWatch }, network, volumeProbe] =
    await Promise.all([
      openingMachines,
      openingNetwork,
      VolumeProbe.open(buildDir, log.child({ part: 'volume' })),
    ]);
  const quarantineFolder = join(folder, 'quarantine');
  const quarantine = (kind: string, source: string): Quarantine =>
    new Quarantine({
      folder: join(quarantineFolder, kind),
      source: join(folder, source),
      log: log.child({ part: 'quarantine' }),
    });
  const quarantines = {
    sandbox: quarantine('sandboxes', 'vms'),
    snapshot: quarantine('snapshots', 'snapshots'),
    volume: quarantine('volumes', 'volumes'),
  };
  await Promise.all(Object.values(quarantines).map((one) => one.open()));
  const {
    images,
    groups: imageGroups,
    caches,
    fetcher,
  } = await startImages({
    options,
    folder,
    machines,
    network,
    admission,
    store,
    snapshotQuarantine: quarantines.snapshot,
  });
  whenFailed(() => imageGroups.abandon());
  const { pools, warm } = createWarmVms({ options, machines, network, admission, images });
  const storeProgram = await StoreProgram.open(buildDir, programs);
  const { copies, groups: volumeGroups } = await openVolumes({
    options,
    folder,
    runnerId: id,
    programs,
    store,
    quarantine: quarantines.volume,
  });
  whenFailed(() => volumeGroups.abandon());
  const meter = new UsageMeter({
    folder: join(folder, 'usage'),
    reader: new CounterReader(cgroups),
    log: log.child({ part: 'metering' }),
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

  // What reconciles the host with the state that control wants.
  const report = (one: Report): void => link.report(one);
  const operations = new OperationMetrics();
  const reconciler = new Reconciler({
    host,
    operations,
    records: new RecordStore(join(folder, 'state')),
    quarantine: quarantines.sandbox,
    report: (observation) => report(toSandboxReport(observation)),
    log: log.child({ part: 'sandbox' }),
  });
  const snapshots = new SnapshotReconciler({
    folders: machines.snapshots,
    quarantine: quarantines.snapshot,
    compact: async (id) => {
      await machines.compaction.snapshot(id);
      machines.digests.look();
    },
    find: (vmId) => reconciler.get(vmId),
    driver: platform.driver,
    report: (observation) => report(toSnapshotReport(observation)),
    log: log.child({ part: 'snapshot' }),
  });
  const volumes = new VolumeReconciler({ copies, report, log: log.child({ part: 'volume' }) });
  const orphans = new Orphans({
    kinds: [reconciler, snapshots, volumes],
    folder: quarantineFolder,
    log: log.child({ part: 'quarantine' }),
  });
  const buildLogPath = (jobId: string): string => join(buildLogsFolder, jobId, 'build.log');
  const builds = new ImageBuilds({
    images,
    logPath: buildLogPath,
    report,
    log: log.child({ part: 'build' }),
  });
  const artifacts = new ArtifactReconciler({
    client: store,
    fetcher,
    images,
    snapshots: machines.snapshots,
    snapshotReconciler: snapshots,
    async capture(vmId, snapshotId) {
      const sandbox = reconciler.get(vmId);
      if (sandbox === undefined) throw new Error('the sandbox is not on this machine');
      await sandbox.captureResting(snapshotId);
    },
    report,
    log: log.child({ part: 'artifact' }),
  });
  const uplink = new UsageUplink({
    spool: meter.spool,
    send: (message) => link.usageHistory(message),
  });
  const usage = new UsageReporter({
    running: () => reconciler.running(),
    read: async (vmId) => meter.cpu(vmId),
    report: (readings) => link.usage(readings),
    log: log.child({ part: 'metering' }),
  });
  meter.listen({ onPass: () => uplink.pump(), onEdge: (vmId, counter) => usage.tell(vmId, counter) });

  /** What was started; it is closed in the reverse order. */
  const started = new AsyncDisposableStack();
  whenFailed(() => started.disposeAsync());
  let ready = false;
  let warmed = Promise.resolve();
  const isLive = (vmId: string): boolean => reconciler.get(vmId)?.live !== undefined;

  started.defer(() => images.close());
  started.defer(() => machines.templates.close());
  started.defer(() => copies.detach());
  started.defer(async () => {
    // Interrupts all starts before cold boots are cancelled: one that waits for a cold boot is continued by the next runner, and
    // does not fail.
    const detached = reconciler.detach();
    detached.catch(() => undefined);
    await reconciler.moved();
    machines.templates.stop();
    await warmed.catch(() => undefined);
    await Promise.all([detached, machines.digests.close(), pools.close()]);
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
  for (const space of spaces) started.defer(() => space.close());
  const clock = new ClockStepDetector(() => reconciler.setClocks());
  started.defer(() => clock.close());
  started.defer(() => caches.close());
  for (const retention of [
    new LogRetention(logsFolder, (vmId) => reconciler.get(vmId) !== undefined, log),
    new LogRetention(buildLogsFolder, (jobId) => builds.log(jobId) !== undefined, log),
  ])
    started.defer(() => retention.close());
  const dataServer = await startDataServer({
    socketPath: join(home, 'run', 'runner.sock'),
    ...(options.dataListen && { tls: { ...options.dataListen, certificate } }),
    reverse,
    verify: dataTokenVerifier(identity),
    isKnown: (id) => reconciler.isKnown(id),
    metrics: runnerMetrics({
      starts: [admission, () => pools.stats, images],
      operations,
      reconciler,
      network,
      memoryBudget: machines.memoryBudget,
      oomKills: machines.oomKills,
      spaces,
      quarantines,
      certificate,
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
  started.defer(() => dataServer.close());
  started.defer(() => certificate.close());

  // Before anything new is made: VMs without a record are removed, and those with one are adopted or ended.
  const records = await reconciler.load();
  await machines.reclaim(records, (vmId) => quarantines.sandbox.park(vmId));
  await network.reclaim(records);
  await copies.recover();
  await reconciler.recover();
  copies.start(isLive);
  meter.retain(isLive);

  await artifacts.open(join(folder, 'snapshots'));
  started.defer(() => artifacts.close());
  started.defer(() => builds.close());
  started.defer(() => volumes.close());
  started.use(new QuarantinePurge(Object.values(quarantines), options.quarantineDays, log));
  started.defer(() => orphans.close());

  const { capacity, name, classes } = options;
  const facts = await runnerFacts({ capacity, name, classes, folder, accelerator, machines, log });
  const linked = Promise.withResolvers<void>();
  link.start({
    hello: () => ({
      runner_id: id,
      region: options.region,
      data_url: dataServer.url,
      facts,
      capabilities: [
        ...(reverse === undefined ? [] : [REVERSE_CAPABILITY]),
        MOVES_CAPABILITY,
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
      orphans.linked();
      linked.resolve();
    },
    onSynced: () => orphans.synced(),
    onCapabilities: (capabilities) => uplink.linked(capabilities.includes(USAGE_HISTORY_CAPABILITY)),
    onDial: (address) => reverse?.dial(address),
    onUsageStored: (seq) => uplink.stored(seq),
  });
  started.defer(() => link.close());
  started.defer(() => kvmWatch?.close());
  volumeProbe.watch(() => link.renew());
  started.defer(() => volumeProbe.close());
  storeProgram.watch(() => link.renew());
  started.defer(() => storeProgram.close());
  meter.start();
  started.defer(() => meter.close());
  usage.start();
  started.defer(() => usage.close());
  const relief = setInterval(() => {
    machines.memoryBudget.relieve().catch((error: unknown) => log.warn({ err: error }, 'caches keep memory'));
  }, RELIEF_MS).unref();
  started.defer(() => clearInterval(relief));
  warmed = (async () => {
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

  const removeAll = async (): Promise<void> => {
    await copies.unmount();
    await network.close();
    await cgroups.close();
    await volumeGroups.close();
    await imageGroups.close();
  };
  opened.move();
  return {
    facts,
    linked: linked.promise,
    close: async () => {
      await started.disposeAsync();
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
      await started.disposeAsync();
      await removeAll();
      await machines.persistent.allDurable();
    },
  };
}

/** What heartbeats report: memory outside the guarantees of sandboxes. Waiting VMs are removed when the host needs their memory. */
function heldMemory({ held }: MemoryBudget, { mib }: WarmPools): HeldMemory {
  return { mem_mib: held.mem_mib + mib, reclaimable_mib: held.reclaimable_mib + mib };
}
