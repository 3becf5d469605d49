/** The routes of the data server: what the runner tells of its sandboxes and builds, and the ways into them. */
import type { FastifyInstance } from 'fastify';
import type { Logger } from 'pino';
import type { ImageBuilds } from '../build/image-builds.ts';
import { registerDeniedEgress } from '../data/denied-routes.ts';
import { registerEntrypoint } from '../data/entrypoint-routes.ts';
import { registerBuildLogs, registerLogs } from '../data/log-routes.ts';
import { registerIdle } from '../data/idle-routes.ts';
import { registerStores } from '../data/store-routes.ts';
import { registerUsage } from '../data/usage-routes.ts';
import { readLog } from '../logs/log-file.ts';
import type { StoreProgram } from '../host/store-program.ts';
import type { UsageMeter } from '../metering/usage-meter.ts';
import type { Network } from '../network/network.ts';
import type { AddressStreams } from '../ports/address-streams.ts';
import { registerPortStreams } from '../ports/port-stream.ts';
import type { MachineHost } from '../reconcile/machine-host.ts';
import { portHost } from '../reconcile/port-host.ts';
import type { Reconciler } from '../reconcile/reconciler.ts';
import { registerToolbox } from '../toolbox/index.ts';

export interface DataRoutesParts {
  host: MachineHost;
  reconciler: Reconciler;
  network: Network;
  storeProgram: StoreProgram;
  meter: UsageMeter;
  builds: ImageBuilds;
  /** Absolute path of the log of a build. */
  buildLogPath: (jobId: string) => string;
  addresses: AddressStreams;
  log: Logger;
}

export async function registerDataRoutes(app: FastifyInstance, parts: DataRoutesParts): Promise<void> {
  const { host, reconciler, network, storeProgram, meter, builds, buildLogPath, addresses, log } = parts;
  registerLogs(app, {
    read: (vmId, kind) => readLog(host.logPath(vmId, kind)),
    live: (vmId, kind) => reconciler.get(vmId)?.live?.[kind],
  });
  registerEntrypoint(app, async (vmId) => (await reconciler.get(vmId)?.live?.guest())?.entrypoint);
  registerIdle(app, (vmId) => reconciler.get(vmId));
  registerUsage(app, (vmId) => meter.usageOf(vmId));
  registerDeniedEgress(
    app,
    async (vmId) => (await network.denied(vmId)) ?? (reconciler.get(vmId) === undefined ? undefined : []),
  );
  registerStores(app, {
    guest: (vmId) => reconciler.get(vmId)?.live?.guest(),
    serve: (vmId) => network.serveStores(vmId),
    program: () => storeProgram.find(),
  });
  registerBuildLogs(app, {
    read: (jobId) => readLog(buildLogPath(jobId)),
    live: (jobId) => builds.log(jobId),
  });
  registerPortStreams(app, (vmId) => portHost(reconciler.get(vmId)));
  addresses.register(app, (vmId) => portHost(reconciler.get(vmId)));
  await registerToolbox(app, {
    lookup: (vmId) => reconciler.get(vmId)?.live?.guest(),
    entrypointLog: (vmId) => reconciler.get(vmId)?.live?.entrypoint,
    log,
  });
}
