import type { Assignment, RootSource } from '@releap/contract';
import type { SandboxRow } from '../sandboxes/transition-sql.ts';

/** What the runner of this sandbox is to make of it. */
export function toAssignment(row: SandboxRow): Assignment {
  return {
    vm_id: row.id,
    generation: row.generation,
    desired: row.desired,
    ...(row.desired === 'running' ? { start_from: row.start_from } : {}),
    spec: {
      name: row.name,
      root: pinned(row),
      // What has run has a disk of its own, and never begins again.
      ...(row.origin === null || row.manifest_name !== null || row.desired === 'deleted'
        ? {}
        : { origin: row.origin }),
      mode: row.mode,
      cpu: row.cpu,
      vcpus: row.vcpus,
      mem_mib: row.mem_mib,
      scratch_mib: row.scratch_mib,
      ...(row.docker_data_mib === null ? {} : { docker_data_mib: row.docker_data_mib }),
      ports: row.ports,
      // Nothing that is to go needs its environment.
      env: row.desired === 'deleted' ? {} : row.env,
      persistent: row.persistent,
      spot: row.spot,
      ...(row.egress_policy === null ? {} : { egress: row.egress_policy }),
    },
  };
}

/** The write layer of what has run lies on one root image, and on no later one of the same tag. */
export function pinned({ root, manifest_name: digest }: SandboxRow): RootSource {
  return root.type === 'registry' && digest !== null ? { ...root, digest } : root;
}
