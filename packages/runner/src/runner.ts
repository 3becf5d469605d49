import { cpus, totalmem } from 'node:os';
import { mkdir, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import {
  DOCKER_CAPABILITY,
  DOCKERFILE_CAPABILITY,
  type RootSource,
  type RunnerFacts,
  USAGE_HISTORY_CAPABILITY,
} from '@releap/contract';
import type { HeldMemory } from '@releap/contract/runner';
import type { Logger } from 'pino';
import { ArtifactFetcher } from './artifact/artifact-fetcher.ts';
import { ArtifactReconciler } from './artifact/artifact-reconciler.ts';
import { StoreClient } from './artifact/store-client.ts';
import { ImageBuilds } from './build/image-builds.ts';
import { startDataServer } from './data/data-server.ts';
import { registerDeniedEgress } from './data/denied-routes.ts';
import { registerBuildLogs, registerLogs } from './data/log-routes.ts';
import { registerUsage } from './data/usage-routes.ts';
import { EmptyExt4Store } from './disk/empty-ext4.ts';
import { BuildCaches } from './dockerfile/build-caches.ts';
import { contextsOf } from './dockerfile/build-context.ts';
import { BUILD_PROCESSES_MAX, type BuildLimits } from './dockerfile/build-limits.ts';
import { DockerfileBuilds } from './dockerfile/dockerfile-builds.ts';
import { warmUp } from './guest/warm-up.ts';
import { ControlIdentity } from './identity/control-identity.ts';
import { dataTokenVerifier } from './identity/data-token.ts';
import { ImageStore } from './image/image-store.ts';
import { ControlLink } from './link/control-link.ts';
import { Deployment } from './link/deployment.ts';
import { LogRetention } from './logs/log-retention.ts';
import { readLog } from './logs/log-file.ts';
import { builtGuest, guestWithKernel } from './machine/open-machines.ts';
import { Admission, openMachines, WarmPools, WarmVms } from './machine/index.ts';
import { GUEST } from './network/address-plan.ts';
import type { MemoryBudget } from './memory/memory-budget.ts';
import { startMetrics } from './metrics/start-metrics.ts';
import { CounterReader } from './metering/counter-reader.ts';
import { UsageMeter } from './metering/usage-meter.ts';
import { UsageReporter } from './metering/usage-reporter.ts';
import { UsageUplink } from './metering/usage-uplink.ts';
import { SecretsClient } from './network/intercept/secrets-client.ts';
import { Network } from './network/network.ts';
import type { Slot } from './network/slot.ts';
import { toSandboxReport, toSnapshotReport } from './reconcile/assignment.ts';
import { SpaceWatch } from './disk/space-watch.ts';
import { warmUpConfig } from './reconcile/guest-config.ts';
import { ClockStepDetector } from './reconcile/clock-step-detector.ts';
import { sandboxHandler, snapshotHandler } from './reconcile/kind-handlers.ts';
import { MachineHost } from './reconcile/machine-host.ts';
import { Absences } from './quarantine/absences.ts';
import { Quarantine } from './quarantine/quarantine.ts';
import { QuarantinePurge } from './quarantine/quarantine-purge.ts';
import { Reconciler } from './reconcile/reconciler.ts';
import { SnapshotReconciler, vmmName } from './reconcile/snapshot-reconciler.ts';
import { RecordStore } from './reconcile/sandbox-record.ts';
import { runnerId } from './runner-id.ts';
import { portHost } from './reconcile/port-host.ts';
import { AddressStreams } from './ports/address-streams.ts';
import { registerPortStreams } from './ports/port-stream.ts';
import { registerToolbox } from './toolbox/index.ts';

/** User of the VMMs that boot templates. No sandbox has it, and no usual account. */
const TEMPLATE_UID = 0x6ffe_0000;
/** Unless it was configured, waiting machines may take an eighth of the host's memory. */
const WARM_POOL_MEMORY_SHARE = 8;
const WARM_POOL_DISK_MAX_MIB = 4096;
/** The image that waiting VMs warm up with: small, and built from packages of the set-up. */
const WARM_UP_IMAGE: RootSource = { type: 'builtin', name: 'busybox' };
const WARM_UP_SCRATCH_MIB = 512;
const DRAIN_DEADLINE_MS = 30_000;
/** Interval at which a host that is short of memory releases cached memory. */
const RELIEF_MS = 5_000;

/** Machine size of a create without sizes. Its template is made before the runner reports that it is ready. */
export const DEFAULT_MACHINE_SIZE = { vcpus: 2, memMib: 1024 };

export interface RunnerOptions {
  /** `RELEAP_HOME`, absolute. The runner keeps its state in `runner/` below it. */
  home: string;
  /** `RELEAP_CACHE`, absolute: images, templates, empty disks. */
  cacheDir: string;
  /** What set-up has built: kernel, initramfs, packages. */
  buildDir: string;
  /** Absolute path of a kernel of the operator's own for the guests. */
  guestKernel?: string;
  /** Internal listener of the control plane. */
  controlUrl: string;
  /** Lets this machine join an installation that does not know it. */
  joinToken: () => Promise<string | undefined>;
  /** Shared token of version 0.1, where this home has one. */
  previousToken?: () => Promise<string | undefined>;
  region: string;
  /** Address that declared ports are published on. */
  listenHost: string;
  /** User of the engine of previews on this machine, who may connect to sandboxes. */
  previewUid?: number | undefined;
  warmPool: {
    /** Micro-VMs of the default shape kept restored and waiting, at least; 0 for no waiting VMs. */
    size: number;
    /** Memory that waiting VMs may take together, MiB. Default: an eighth of the host's. */
    memoryMib?: number;
  };
  /** Private networks, as CIDR, that the egress policies of tenants may open. */
  tenantPrivateNetworks: readonly string[];
  /** Certificates of authorities, PEM, that servers which secrets are sent to may be verified with besides those of the host. */
  egressCa?: string | undefined;
  images: {
    /** Hosts and networks that pulls may connect to besides public addresses. */
    privateHosts: readonly string[];
    /** Instead of Amazon's endpoints for tokens of its registries. */
    ecrEndpoint?: string;
    /** Most root images and unpacked layers kept, MiB. */
    cacheMib: number;
    layerMib: number;
  };
  /** What control does not name any more is removed after this many days; 0 keeps it for ever. */
  quarantineDays: number;
  /** What a build of a Dockerfile may take, and how many run at a time. */
  builds: Omit<BuildLimits, 'processes'>;
  /** What this machine offers, instead of what it has. */
  capacity?: { cores?: number; memMib?: number; diskMib?: number };
  log: Logger;
}

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
  const [id, { machines, cgroups, facts: accelerator, vmms }, network] = await Promise.all([
    runnerId(join(folder, 'id')),
    openMachines({
      home,
      folder: join(folder, 'vms'),
      cacheDir,
      buildDir,
      ...guest,
      guestNetwork: { mac: GUEST.mac, address: `${GUEST.ip}/${GUEST.prefix},${GUEST.gatewayIp}` },
      templateUid: TEMPLATE_UID,
      defaultShape: DEFAULT_MACHINE_SIZE,
      log: log.child({ part: 'vmm' }),
    }),
    Network.open({
      clientUid: options.previewUid,
      onRelease: (vmId) => addresses.end(vmId),
      dir: join(folder, 'network'),
      identity: home,
      listenHost: options.listenHost,
      tenantPrivateNetworks: options.tenantPrivateNetworks,
      deniedPath: (vmId) => join(logsFolder, vmId, 'denied.json'),
      secrets: {
        source: new SecretsClient({
          controlUrl: options.controlUrl,
          credential: () => identity.credential(),
        }),
        extraCa: options.egressCa,
      },
      spare: (signal) => admission.spare(signal),
      log: log.child({ part: 'network' }),
    }),
  ]);
  const identity = await ControlIdentity.open({
    folder,
    runnerId: id,
    controlUrl: options.controlUrl,
    joinToken: options.joinToken,
    previousToken: options.previousToken ?? (() => Promise.resolve(undefined)),
    log: log.child({ part: 'link' }),
  });
  const images = new ImageStore({
    cacheDir,
    log: log.child({ part: 'image' }),
    packagesDir: join(buildDir, 'packages'),
    ...(options.builds.parallel > 0 && {
      buildDockerfile: (root, build) => dockerfiles.build(root, build),
    }),
    fetchStored: (digest, signal) => fetcher.ensureImage(digest, signal),
    privateHosts: options.images.privateHosts,
    ecrEndpoint: options.images.ecrEndpoint,
    limits: {
      cacheBytes: options.images.cacheMib * 2 ** 20,
      layerBytes: options.images.layerMib * 2 ** 20,
    },
  });
  await images.start();
  const store = new StoreClient({ controlUrl: options.controlUrl, credential: () => identity.credential() });
  const caches = new BuildCaches({
    folder: join(folder, 'build-caches'),
    emptyDisks: new EmptyExt4Store(cacheDir),
    diskMib: options.builds.diskMib,
    maxMib: options.builds.cacheMib,
    deletedProjects: (projects, signal) => store.deletedProjects(projects, signal),
    log: log.child({ part: 'build' }),
  });
  const dockerfiles: DockerfileBuilds = new DockerfileBuilds({
    machines,
    network,
    admission,
    images,
    caches,
    openBlob: contextsOf(store),
    limits: { ...options.builds, processes: BUILD_PROCESSES_MAX },
    log: log.child({ part: 'build' }),
  });
  const buildLogsFolder = join(folder, 'build-logs');
  const buildLogPath = (jobId: string): string => join(buildLogsFolder, jobId, 'build.log');
  const pools = new WarmPools({
    budgetMib: options.warmPool.memoryMib ?? Math.floor(totalmem() / 2 ** 20 / WARM_POOL_MEMORY_SHARE),
    spare: (signal) => admission.spare(signal),
    log: log.child({ part: 'pool' }),
  });
  machines.memoryBudget.alsoRelease(() => pools.release());
  const warm = new WarmVms<Slot>({
    machines,
    pools,
    slots: network,
    shape: DEFAULT_MACHINE_SIZE,
    size: options.warmPool.size,
    diskMaxMib: WARM_POOL_DISK_MAX_MIB,
    warmUp: {
      image: () => images.ensure(WARM_UP_IMAGE),
      scratchMib: WARM_UP_SCRATCH_MIB,
      run: (running) => warmUp(running.agentSocketPath, warmUpConfig(running), log),
    },
  });
  const fetcher = new ArtifactFetcher({
    client: store,
    snapshots: machines.snapshots,
    snapshotQuarantine: { restore: (id) => snapshotQuarantine.restore(id) },
    images,
    log: log.child({ part: 'artifact' }),
  });
  const meter: UsageMeter = new UsageMeter({
    folder: join(folder, 'usage'),
    reader: new CounterReader(cgroups),
    onPass: () => uplink.pump(),
    log: log.child({ part: 'metering' }),
  });
  const uplink = new UsageUplink({
    spool: meter.spool,
    send: (message) => link.usageHistory(message),
  });
  const host = new MachineHost({
    machines,
    meter,
    artifacts: fetcher,
    images,
    network,
    warm,
    admission,
    logsFolder,
    listenHost: options.listenHost,
    log: log.child({ part: 'sandbox' }),
  });
  const facts: RunnerFacts = {
    arch: 'amd64',
    cores: options.capacity?.cores ?? cpus().length,
    mem_mib: options.capacity?.memMib ?? Math.floor(totalmem() / 2 ** 20),
    disk_mib: options.capacity?.diskMib ?? (await diskMib(folder)),
    accelerator: accelerator.accelerator,
    cpu_model: accelerator.hostCpu,
    vmm: vmmName(vmms.newest.version),
    restorable_vmms: vmms.versions.map(vmmName),
    gpus: 0,
  };

  const quarantineFolder = join(folder, 'quarantine');
  const quarantine = (kind: string, source: string): Quarantine =>
    new Quarantine({
      folder: join(quarantineFolder, kind),
      source: join(folder, source),
      log: log.child({ part: 'quarantine' }),
    });
  const sandboxQuarantine = quarantine('sandboxes', 'vms');
  const snapshotQuarantine = quarantine('snapshots', 'snapshots');
  await Promise.all([sandboxQuarantine.open(), snapshotQuarantine.open()]);

  let ready = false;
  const linked = Promise.withResolvers<void>();
  const reconciler: Reconciler = new Reconciler({
    host,
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
  const absences = new Absences({
    kinds: [reconciler, snapshots],
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
      capabilities: options.builds.parallel > 0 ? [DOCKERFILE_CAPABILITY, DOCKER_CAPABILITY] : [],
    }),
    isReady: () => ready,
    heldMemory: () => heldMemory(machines.memoryBudget, pools),
    handlers: [sandboxHandler(reconciler, log), snapshotHandler(snapshots), builds, artifacts],
    onLinked: () => {
      absences.linked();
      linked.resolve();
    },
    onSynced: () => absences.synced(),
    onCapabilities: (capabilities) => uplink.linked(capabilities.includes(USAGE_HISTORY_CAPABILITY)),
    onUsageStored: (seq) => uplink.stored(seq),
    log: log.child({ part: 'link' }),
  });
  const usage = new UsageReporter({
    running: () => reconciler.running(),
    read: async (vmId) => meter.cpu(vmId),
    report: (readings) => link.usage(readings),
    log: log.child({ part: 'metering' }),
  });
  const space: SpaceWatch = new SpaceWatch({
    folder,
    onShort: () => reconciler.pauseForSpace(() => space.isShort),
    log: log.child({ part: 'disk' }),
  });
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
    metrics: startMetrics(admission, () => pools.stats, images),
    register: async (app) => {
      registerLogs(app, {
        read: (vmId, kind) => readLog(host.logPath(vmId, kind)),
        live: (vmId, kind) => reconciler.get(vmId)?.live?.[kind],
      });
      registerUsage(app, (vmId) => meter.usageOf(vmId));
      registerDeniedEgress(
        app,
        async (vmId) => (await network.denied(vmId)) ?? (reconciler.get(vmId) === undefined ? undefined : []),
      );
      registerBuildLogs(app, {
        read: (jobId) => readLog(buildLogPath(jobId)),
        live: (jobId) => builds.log(jobId),
      });
      registerPortStreams(app, (vmId) => portHost(reconciler.get(vmId)));
      addresses.register(app, (vmId) => portHost(reconciler.get(vmId)));
      await registerToolbox(app, { lookup: (vmId) => reconciler.get(vmId)?.live?.guest(), log });
    },
    log,
  });

  // Before anything new is made: VMs without a record are removed, and those with one are adopted or ended.
  const records = await reconciler.load();
  await machines.reclaim(records, (vmId) => sandboxQuarantine.park(vmId));
  await network.reclaim(records);
  await reconciler.recover();
  meter.retain((vmId) => reconciler.get(vmId)?.live !== undefined);
  await artifacts.open(join(folder, 'snapshots'));
  const purge = new QuarantinePurge([sandboxQuarantine, snapshotQuarantine], options.quarantineDays, log);
  link.start();
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
    await link.close();
    absences.close();
    purge[Symbol.dispose]();
    await builds.close();
    await artifacts.close();
    await dataServer.close();
    logRetention.close();
    buildLogRetention.close();
    caches.close();
    clock.close();
    space.close();
    // Interrupts all starts before cold boots are cancelled: one that waits for a cold boot is continued by the next runner, and
    // does not fail.
    const detached = reconciler.detach();
    detached.catch(() => undefined);
    await reconciler.moved();
    machines.templates.stop();
    await warmed.catch(() => undefined);
    await Promise.all([detached, machines.digests.close(), pools.close()]);
    await machines.templates.close();
    await images.close();
  };
  const removeAll = async (): Promise<void> => {
    await network.close();
    await cgroups.close();
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

async function diskMib(folder: string): Promise<number> {
  const { bavail, bsize } = await statfs(folder);
  return Math.floor((bavail * bsize) / 2 ** 20);
}
