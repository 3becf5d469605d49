/**
 * Test files that run a second time in the machine of `test/kvm-machine.test.ts`: what guests do under KVM, and not what the control
 * plane does, and what needs systemd with control groups of version 2. They need no network.
 */
export const KVM_FILES = [
  'packages/runner/test/cgroup-tree.unit.test.ts',
  'packages/runner/test/cgroup-units.test.ts',
  'test/first-sandbox.test.ts',
  'test/fork-source-deleted.test.ts',
  'test/function-calls.test.ts',
  'test/lifecycle-api.test.ts',
  'test/volumes.test.ts',
  'test/warm-pool.test.ts',
];

/** Boots the machine. It needs the processors for itself. */
export const KVM_MACHINE_FILE = 'test/kvm-machine.test.ts';

/** In the environment of a run: `1` boots the machine where guests are emulated, `always` anywhere. */
export const KVM_VARIABLE = 'RELEAP_TEST_KVM';
