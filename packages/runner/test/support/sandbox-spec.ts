import type { SandboxSpec } from '@releap/contract';

/**
 * The sandbox of most tests. Its machine size is that of the service's tests too: each other size costs a cold boot,
 * for its template.
 */
export const SPEC: SandboxSpec = {
  name: 'subject',
  root: { type: 'builtin', name: 'busybox' },
  mode: 'burstable',
  cpu: 0.5,
  vcpus: 1,
  mem_mib: 256,
  scratch_mib: 256,
  ports: [{ vm_port: 8080, proto: 'tcp' }],
  env: { GREETING: 'hello' },
  persistent: true,
  spot: false,
};
