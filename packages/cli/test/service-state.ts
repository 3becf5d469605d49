/** What the service that tests talk to holds, and what a test may set. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type {
  HostRecord,
  ProcessStreamStart,
  SandboxRecord,
  SandboxStatus,
  SnapshotRecord,
} from '@releap/contract';

import type { TestManagement } from './service-management.ts';

export interface TestSandbox extends SandboxRecord {
  /** Statuses that the next reads show, one a read; the last one stays. */
  coming: SandboxStatus[];
}

export interface TestSnapshot extends SnapshotRecord {
  /** Statuses that the next reads show, one a read; the last one stays. */
  coming: SnapshotRecord['status'][];
}

export type Handler = (request: IncomingMessage, response: ServerResponse, url: URL) => unknown;

export interface TestService extends AsyncDisposable {
  url: string;
  sandboxes: TestSandbox[];
  images: Record<string, unknown>[];
  snapshots: TestSnapshot[];
  hosts: HostRecord[];
  /** Ids of hosts that were forgotten. */
  forgotten: Set<string>;
  /** Without it the service has no issuer of tokens. */
  management: TestManagement | undefined;
  /** Secrets and credentials for registries as they were put, by path. */
  kept: Map<string, Record<string, unknown>>;
  /** `METHOD /path` of everything that was asked. */
  calls: string[];
  /** Bodies of what makes something: `POST /vms`, `POST /images`, forks, snapshots. */
  bodies: Record<string, unknown>[];
  /** Logs by path; every read takes the first of several. */
  logs: Map<string, string[]>;
  /** Answers in place of the usual ones, by `METHOD /path`; one that returns false falls through. */
  special: Map<string, Handler>;
  /** What becomes of the next sandboxes. */
  coming: SandboxStatus[];
  /** What becomes of a sandbox after a call, by `VERB NAME`. */
  outcomes: Map<string, SandboxStatus[]>;
  /** No web socket: the oldest kind of service. */
  streams: boolean;
  /** Command lines that were started. */
  started: ProcessStreamStart[];
  add: (name: string, more?: Partial<TestSandbox>) => TestSandbox;
}
