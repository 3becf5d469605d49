/** Hosts as their operator sees and drains them, under the internal token. */
import { Type, type Static } from 'typebox';
import type { RunnerFacts } from '../runner-link.ts';
import type { SandboxStatus } from './sandbox-status.ts';

/** `GET`. Below it: `POST /:id/drain`, `POST /:id/undrain`, `POST /:id/evict`. */
export const HOSTS_PATH = '/operator/hosts';

export interface HostResources {
  cpu: number;
  mem_mib: number;
  disk_mib: number;
  gpus: number;
}

export interface HostRecord {
  id: string;
  region: string;
  status: 'online' | 'offline' | 'lost';
  /** It takes sandboxes, unless it is being drained. */
  ready: boolean;
  draining: boolean;
  /** RFC 3339. */
  draining_since: string | null;
  /** The drain ends ephemeral sandboxes too. */
  force: boolean;
  last_seen_at: string;
  facts: RunnerFacts;
  /** What is promised of it, and what may be in all. */
  used: HostResources;
  allocatable: HostResources;
  /** How many it holds of each status, none left out but zeros. */
  sandboxes: Partial<Record<SandboxStatus, number>>;
  /** Snapshots that it keeps or is taking. */
  snapshots: number;
}

export interface HostList {
  hosts: HostRecord[];
}

export const HostDrainRequest = Type.Object({
  force: Type.Optional(
    Type.Boolean({
      description: 'Delete ephemeral sandboxes too, instead of letting them end by themselves.',
    }),
  ),
});
export type HostDrainRequest = Static<typeof HostDrainRequest>;

export interface HostDrainResponse {
  host: HostRecord;
  /** Ids of sandboxes for which this call has begun it. */
  did: { paused: string[]; stopped: string[]; deleted: string[] };
  /** What goes on there: ephemeral without `force`, or still on its way to running. */
  left: { vm_id: string; status: SandboxStatus; persistent: boolean; spot: boolean }[];
}

export interface HostUndrainResponse {
  host: HostRecord;
}

export const HostEvictRequest = Type.Object({
  vm_id: Type.Optional(
    Type.String({ description: 'One spot sandbox of this host; all of them when absent.' }),
  ),
});
export type HostEvictRequest = Static<typeof HostEvictRequest>;

export interface HostEvictResponse {
  evicted: { vm_id: string; status: SandboxStatus }[];
  /** Spot sandboxes that could not be evicted, and why. */
  left: { vm_id: string; why: string }[];
}
