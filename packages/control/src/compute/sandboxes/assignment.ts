import type { Origin, RootSource } from '@releap/contract';
import type { SandboxAssignment } from '@releap/contract/runner';
import type { SandboxRow } from '@releap/database';
import type { AssignableRow } from './environment.ts';

/** The sandbox's assignment to its runner. */
export function toAssignment(row: AssignableRow): SandboxAssignment {
  const { name, origin, vcpus, ports, egress_policy, entrypoint, user, traceparent } = row.spec;
  return {
    kind: 'sandbox',
    id: row.id,
    generation: row.generation,
    desired: row.desired,
    spec: {
      ...(row.desired === 'running' ? { start_from: row.start_from } : {}),
      name: name ?? '',
      project_id: row.project_id,
      root: pinRoot(row.root, row.manifest_name),
      // A sandbox that has run has its own disk and is never copied from its origin again, but to another host.
      ...(origin === null || (row.manifest_name !== null && !isMoved(origin)) || row.desired === 'deleted'
        ? {}
        : { origin }),
      mode: row.mode,
      cpu: row.cpu,
      vcpus,
      mem_mib: row.mem_mib,
      scratch_mib: row.scratch_mib,
      ...(row.docker_data_mib === null ? {} : { docker_data_mib: row.docker_data_mib }),
      ports,
      // The deletion of a sandbox needs no environment.
      env: row.desired === 'deleted' ? {} : row.env,
      ...(entrypoint === undefined ? {} : { entrypoint }),
      ...(user === undefined ? {} : { user }),
      persistent: row.persistent,
      ...(row.persistent && row.manifest_name !== null ? { disk_manifest: row.manifest_name } : {}),
      spot: row.spot,
      ...(row.egressSecrets === undefined ? {} : { egress_secrets: row.egressSecrets }),
      ...(row.objectStores === undefined ? {} : { object_stores: row.objectStores }),
      ...(row.volumes === undefined ? {} : { volumes: row.volumes }),
      ...(egress_policy === null ? {} : { egress: egress_policy }),
      // Later starts belong to other requests.
      ...(traceparent === undefined || row.generation > 1 ? {} : { traceparent }),
    },
  };
}

const isMoved = (origin: Origin): boolean => origin.type === 'snapshot' && origin.moved === true;

/** Pins the digest of a sandbox that has run: its disk is based on that root image, not on a later one of the same tag. */
export function pinned({ spec, manifest_name }: Pick<SandboxRow, 'spec' | 'manifest_name'>): RootSource {
  return pinRoot(spec.root, manifest_name);
}

function pinRoot(root: RootSource, digest: string | null): RootSource {
  if (digest === null) return root;
  if (root.type === 'registry') return { ...root, digest };
  // Another build of the same Dockerfile is another image.
  return root.type === 'dockerfile' ? { type: 'stored', digest } : root;
}
