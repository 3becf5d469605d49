import { readFile } from 'node:fs/promises';
import { startRunner } from '@releap/runner';
import { internalUrlOf } from '../config/config.ts';
import { BUILD_DIR } from '../paths.ts';
import { previewUid } from '../preview-uid.ts';
import { tokenToShow } from '../tokens.ts';
import { assertRoot } from './root.ts';
import type { RoleContext, RunningRole } from './run-role.ts';

/** The host agent of this machine. */
export async function runnerRole({ config, log, stopping }: RoleContext): Promise<RunningRole> {
  assertRoot();
  const runner = await startRunner({
    home: config.home,
    cacheDir: config.cacheDir,
    buildDir: BUILD_DIR,
    ...(config.guestKernel !== undefined && { guestKernel: config.guestKernel }),
    controlUrl: internalUrlOf(config),
    controlFingerprint: config.controlFingerprint,
    joinToken: () => tokenToShow(config, 'join'),
    accelerator: config.accelerator,
    cpuModel: config.cpuModel,
    signal: stopping,
    region: config.region.id,
    name: config.hostName,
    listenHost: config.host,
    dataListen: config.data,
    previewUid: config.previewEngine === 'haproxy' ? previewUid(config.home) : undefined,
    warmPool: config.warmPool,
    builds: config.builds,
    quarantineDays: config.quarantineDays,
    volumeCommitMs: config.volumeCommitMs,
    tenantPrivateNetworks: config.tenantPrivateNetworks,
    storePrivateHosts: config.storePrivateHosts,
    ...(config.egressCaFile !== undefined && { egressCa: await readFile(config.egressCaFile, 'utf8') }),
    images: config.images,
    diskLimit: config.diskLimit,
    capacity: config.capacity,
    classes: config.classes,
    log,
  });
  const { accelerator, vmm, cores, mem_mib: memory } = runner.facts;
  return {
    linked: runner.linked,
    facts: { accelerator, vmm, capacity: `${cores} cores, ${memory} MiB` },
    stop: () => runner.shutDown(),
    detach: () => runner.close(),
  };
}
