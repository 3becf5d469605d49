/** The sandbox of an instance: owned by the service, in the tenant's project. */
import { DEFAULTS, newToken, newUuid, type RootSource } from '@releap/contract';
import { queryAll, statement, type Queryable } from '@releap/database';
import { createSandbox, type CreateSandbox } from '../../compute/sandboxes/insert.ts';
import type { InstanceVersion } from './version.ts';

/** `owner_service` of instances. */
export const FUNCTIONS = 'functions';
/** Guaranteed cores; an instance bursts to all of its virtual CPUs. */
const GUARANTEED_CORES = 0.125;

export type Purpose = 'serve' | 'probe';

const INSERT = statement(
  'function-instance-insert',
  `insert into function_instances (sandbox_id, function_id, version_id, project_id, purpose, gateway_id, lease_until)
   values ($1, $2, $3, $4, $5, $6, now() + $7 * interval '1 millisecond')`,
);

/** The holder of an instance and the length of its lease, in milliseconds. */
export interface FirstLease {
  /** Null: no gateway yet; the instance is kept until the lease expires. */
  gatewayId: string | null;
  ms: number;
}

/**
 * The sandbox of an instance.
 * @param purpose memory and disk of a `probe` can be captured
 */
export function instanceSandbox(
  version: InstanceVersion,
  root: RootSource,
  purpose: Purpose,
  deadlineMs: number,
): CreateSandbox {
  const {
    project_id: projectId,
    name,
    region,
    vcpus,
    mem_mib,
    scratch_mib,
    handler,
    image_ref,
    port,
  } = version;
  return {
    owner: { kind: 'service', service: FUNCTIONS, projectId },
    spec: {
      name,
      region,
      cpu_arch: DEFAULTS.cpuArch,
      mode: 'burstable',
      cpu: GUARANTEED_CORES,
      vcpus,
      mem_mib,
      scratch_mib,
      gpu_host: 0,
      docker_data_mib: null,
      ports: [],
      egress_policy: null,
      persistent: purpose === 'probe' && version.snapshot_kind === 'fn_ready',
      spot: false,
      env: { ...version.env, RLP_FN_PORT: String(port) },
      root,
      image_ref,
      ...(handler.length === 0 ? {} : { entrypoint: handler }),
    },
    source: { kind: 'image' },
    ids: { id: newUuid(), jobId: newUuid(), accessToken: newToken('sandbox') },
    deadlineMs,
  };
}

/** Inserts the sandbox and its row among the instances, in the caller's transaction. */
export async function insertInstance(
  client: Queryable,
  version: InstanceVersion,
  sandbox: CreateSandbox,
  purpose: Purpose,
  lease: FirstLease,
): Promise<void> {
  await createSandbox(client, sandbox);
  await queryAll(client, INSERT, [
    sandbox.ids.id,
    version.function_id,
    version.id,
    version.project_id,
    purpose,
    lease.gatewayId,
    lease.ms,
  ]);
}
