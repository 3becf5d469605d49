/** Restores: what the snapshot fixes of the new sandbox, and whether its host can restore it. Pure. */
import {
  badRequest,
  conflict,
  cpuMarker,
  quote,
  resolveResources,
  type PlatformLimits,
  type ResolvedSandbox,
  type RunnerFacts,
  type SandboxCreateRequest,
  type CodeOf,
} from '@releap/contract';
import type { Environment, SnapshotRow } from '@releap/database';

/**
 * The requested sandbox, completed with the snapshot's fixed values.
 * @param captured the environment that a full snapshot was taken with
 * @throws 400 for a requested size that is not the snapshot's
 */
export function restoredSandbox(
  asked: ResolvedSandbox,
  body: SandboxCreateRequest,
  snapshot: SnapshotRow,
  captured: Environment,
  platform: PlatformLimits,
): ResolvedSandbox {
  const refuse: Refuse = (field, was, is) => {
    throw badRequest(
      `${field} is ${was}, but that of snapshot ${quote(snapshot.name)} is ${is}: leave it out, or send the same value`,
    );
  };
  if (body.scratch_mib !== undefined && asked.scratch_mib !== snapshot.scratch_mib)
    refuse('scratch_mib', asked.scratch_mib, snapshot.scratch_mib);
  if (asked.cpu_arch !== null && asked.cpu_arch !== snapshot.cpu_arch)
    refuse('cpu_arch', asked.cpu_arch, snapshot.cpu_arch);
  const disk: ResolvedSandbox = {
    ...asked,
    scratch_mib: snapshot.scratch_mib,
    cpu_arch: snapshot.cpu_arch as ResolvedSandbox['cpu_arch'],
  };
  if (snapshot.kind === 'disk') return disk;

  if (body.mem_mib !== undefined && asked.mem_mib !== snapshot.mem_mib)
    refuse('mem_mib', asked.mem_mib, snapshot.mem_mib);
  for (const [field, used] of [
    ['gpu_host', asked.gpu_host > 0],
    ['docker_data_mib', asked.docker_data_mib !== null],
    ['object_store_mounts', asked.object_store_mounts.length > 0],
    ['volumes', asked.volumes.length > 0],
  ] as const) {
    if (used)
      throw badRequest(
        `${field} cannot be combined with a full snapshot: its memory was captured without it`,
      );
  }
  return {
    ...disk,
    ...guarantee(asked, body, snapshot, platform, refuse),
    mem_mib: snapshot.mem_mib,
    persistent: true,
    env: body.env === undefined ? captured : asked.env,
    ports: body.ports === undefined ? snapshot.spec.ports : asked.ports,
    egress_policy: asked.egress_policy ?? snapshot.spec.egress_policy,
  };
}

type Refuse = (field: string, was: string | number, is: string | number) => never;

/** The number of virtual CPUs is fixed; the guaranteed part of them may be chosen again. */
function guarantee(
  asked: ResolvedSandbox,
  body: SandboxCreateRequest,
  snapshot: SnapshotRow,
  platform: PlatformLimits,
  refuse: Refuse,
): Pick<ResolvedSandbox, 'mode' | 'cpu' | 'vcpus'> {
  const { vcpus } = snapshot.spec;
  if (body.cpu === undefined && body.vcpus === undefined) {
    if (body.mode === undefined || body.mode === snapshot.mode)
      return { mode: snapshot.mode, cpu: snapshot.cpu, vcpus };
    const { mode, cpu } = resolveResources({ mode: body.mode, vcpus }, platform);
    return { mode, cpu, vcpus };
  }
  if (asked.vcpus !== vcpus && asked.cpu !== snapshot.cpu) refuse('vcpus', asked.vcpus, vcpus);
  return { mode: asked.mode, cpu: asked.cpu, vcpus };
}

export interface SnapshotHost {
  id: string;
  status: 'online' | 'offline' | 'lost';
  draining_since: Date | null;
  last_seen_at: Date;
  facts: RunnerFacts;
}

/**
 * @param stored the store has it, so that any host can restore it
 * @throws 409 with the reason when no host can restore it now
 */
export function assertRestorable(snapshot: SnapshotRow, host: SnapshotHost, stored: boolean): void {
  const refuse = (why: string, code: CodeOf<409>): never => {
    throw conflict(`snapshot ${quote(snapshot.name)} cannot be restored: ${why}`, code);
  };
  if (snapshot.status === 'pending')
    refuse('it is not ready yet (pending): wait for GET /snapshots/:id?wait=ready', 'snapshot_not_ready');
  if (snapshot.status !== 'ready')
    refuse(
      `it is not ready but ${snapshot.status}: ${snapshot.error ?? 'no reason was given'}`,
      'snapshot_failed',
    );
  if (snapshot.kind === 'disk' && stored) return;
  if (host.status === 'lost')
    refuse(
      `its host ${host.id} has not been heard from since ${host.last_seen_at.toISOString()}`,
      'host_lost',
    );
  if (host.draining_since !== null) refuse(`its host ${host.id} is being drained`, 'no_capacity');
  if (snapshot.kind === 'disk') return;
  const mismatch = platformMismatch(snapshot, host.facts);
  if (mismatch !== undefined) refuse(mismatch, 'no_capacity');
}

/** Why memory that was captured on a host cannot be resumed there any more; undefined when it can. The end of a sentence. */
export function platformMismatch(
  snapshot: Pick<SnapshotRow, 'fc_version' | 'cpu_marker'>,
  facts: RunnerFacts,
): string | undefined {
  const marker = cpuMarker(facts);
  const vmms = facts.restorable_vmms ?? [facts.vmm];
  if (snapshot.fc_version === null || !vmms.includes(snapshot.fc_version))
    return `it was taken with the VMM ${quote(snapshot.fc_version)}, and its host has ${vmms.map(quote).join(', ')} now`;
  if (snapshot.cpu_marker !== marker)
    return `it was taken on the CPU ${quote(snapshot.cpu_marker)}, and its host has ${quote(marker)} now`;
  return undefined;
}
