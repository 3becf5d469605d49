/** The host that a scripted runner claims to be, and what it captures. */
import { cpuMarker } from '@releap/contract';
import type { RunnerFacts } from '@releap/contract/runner';

/** The region of the servers that tests start. */
export const REGION = 'here';

export const FACTS: RunnerFacts = {
  arch: 'amd64',
  cores: 8,
  mem_mib: 32_768,
  disk_mib: 100_000,
  accelerator: 'tcg',
  cpu_model: 'max',
  vmm: 'scripted 1',
  gpus: 0,
};

export const CAPTURED = {
  status: 'ready',
  artifact_ref: 'kept/here',
  manifest_name: `sha256:${'ab'.repeat(32)}`,
  disk_bytes: 4096,
} as const;
/** What a full one of the scripted host says beside that. */
export const CAPTURED_MEMORY = {
  fc_version: FACTS.vmm,
  cpu_marker: cpuMarker(FACTS),
  mem_bytes: 1024 * 1024 * 1024,
} as const;

/** The same of a host with these facts. */
export const capturedMemory = (facts: RunnerFacts): object => ({
  ...CAPTURED_MEMORY,
  fc_version: facts.vmm,
  cpu_marker: cpuMarker(facts),
});
