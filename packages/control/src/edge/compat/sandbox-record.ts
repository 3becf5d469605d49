/** Sandboxes as the protocol writes them. */
import {
  formatSandboxId,
  parseEgressEntry,
  type CompatBuildInfoRecord,
  type CompatSandbox,
  type CompatSandboxItem,
} from '@releap/contract';
import type { DetailRow, ItemRow } from './sandbox-rows.ts';

const DESIRED = {
  running: 'started',
  stopped: 'stopped',
  paused: 'paused',
  deleted: 'destroyed',
} as const;

/** In lists. */
export function toItem(row: ItemRow, orgId: string): CompatSandboxItem {
  return {
    id: formatSandboxId(row.region, row.id),
    organizationId: orgId,
    name: row.name,
    ...(row.dockerfile === null ? { snapshot: row.snapshot ?? row.image_ref } : {}),
    // That of the image is known to the guest alone; most have none.
    user: row.user ?? 'root',
    labels: row.labels,
    public: false,
    networkBlockAll: row.egress_policy?.enabled === true && row.egress_policy.allow.length === 0,
    // Required by newer versions of the protocol.
    kvm: false,
    target: row.region,
    // Whole numbers: the newest clients take no others. Sandboxes of the API may have parts.
    cpu: Math.ceil(row.cpu),
    gpu: row.gpu_host,
    memory: Math.ceil(row.mem_mib / 1024),
    disk: Math.ceil(row.scratch_mib / 1024),
    state: row.state,
    desiredState: row.stopped && row.desired === 'deleted' ? 'stopped' : DESIRED[row.desired],
    ...(row.state === 'error' ? { errorReason: row.error ?? 'no reason was given' } : {}),
    recoverable: false,
    backupState: 'None',
    autoStopInterval: row.auto_stop_m ?? 0,
    autoArchiveInterval: row.auto_archive_m ?? 0,
    autoDeleteInterval: row.auto_delete_m ?? -1,
    ...(row.auto_destroy_at === null ? {} : { autoDestroyAt: row.auto_destroy_at.toISOString() }),
    createdAt: row.created_at.toISOString(),
    updatedAt: row.updated_at.toISOString(),
    lastActivityAt: row.last_activity_at.toISOString(),
    sandboxClass: 'linux-vm',
    ...(row.runner_id === null ? {} : { runnerId: row.runner_id }),
    toolboxProxyUrl: toolboxUrl(row),
  };
}

/** Base URL of the toolbox, to which clients add `/` and the id. Empty in a region without a gateway. */
export function toolboxUrl({ toolbox_proxy_url: url }: Pick<ItemRow, 'toolbox_proxy_url'>): string {
  return (url ?? '').replace(/\/+$/, '');
}

/** In reads of one sandbox. */
export function toSandbox(row: DetailRow, orgId: string): CompatSandbox {
  const policy = row.egress_policy;
  const lists = policy?.enabled === true ? allowLists(policy.allow) : undefined;
  return {
    ...toItem(row, orgId),
    env: row.env ?? {},
    ...(lists === undefined || lists.networks === '' ? {} : { networkAllowList: lists.networks }),
    ...(lists === undefined || lists.domains === '' ? {} : { domainAllowList: lists.domains }),
    volumes: [],
    ...(row.dockerfile === null ? {} : { buildInfo: buildInfo(row.dockerfile, row) }),
  };
}

export function buildInfo(
  dockerfileContent: string,
  { id, created_at, updated_at }: { id: string; created_at: Date; updated_at: Date },
): CompatBuildInfoRecord {
  return {
    dockerfileContent,
    contextHashes: [],
    createdAt: created_at.toISOString(),
    updatedAt: updated_at.toISOString(),
    snapshotRef: id,
  };
}

function allowLists(allow: readonly string[]): { networks: string; domains: string } {
  const isDomain = (entry: string): boolean => parseEgressEntry(entry).type === 'domain';
  return {
    networks: allow.filter((entry) => !isDomain(entry)).join(','),
    domains: allow.filter(isDomain).join(','),
  };
}
