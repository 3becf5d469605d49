import type { Assignment } from '@releap/contract';
import type { SandboxRow } from '../sandboxes/transition-sql.ts';

/** What the runner of this sandbox is to make of it. */
export function toAssignment(row: SandboxRow): Assignment {
  return {
    vm_id: row.id,
    generation: row.generation,
    desired: row.desired,
    spec: {
      name: row.name,
      root: row.root,
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
