import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { PortMapping, RootSource } from '@releap/contract';
import type { Logger } from 'pino';
import type { Assignment, Observation } from './assignment.ts';
import { syncPath } from '../disk/sync-path.ts';
import { explainFullDisk } from '../memory/memory-file.ts';

/**
 * The record of a sandbox on disk. It is written BEFORE any resource is allocated for the sandbox, so that after a crash
 * each resource has a record that names it.
 */
export interface SandboxRecord {
  assignment: Assignment;
  observation: Observation;
  /** Digest of the root image that the disk is based on, once the sandbox has run. */
  manifest?: string | undefined;
  /** Its last port mapping. */
  ports?: PortMapping[] | undefined;
  /** Boot id of the host when this was written. */
  bootId: string;
}

export interface LoadedRecords {
  records: SandboxRecord[];
  /** Ids of sandboxes whose record cannot be read. */
  unreadable: string[];
}

/** The records of all sandboxes on this machine: one JSON file each, replaced atomically. */
export class RecordStore {
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  /**
   * A record that cannot be read stays: it shows that the sandbox exists and that its disk must be kept. Files are replaced
   * atomically but not fsynced at each step, so one may be empty, or an older one, after a power failure.
   */
  async load(log: Logger): Promise<LoadedRecords> {
    await mkdir(this.#folder, { recursive: true, mode: 0o700 });
    const records: SandboxRecord[] = [];
    const unreadable: string[] = [];
    for (const name of await readdir(this.#folder)) {
      const path = join(this.#folder, name);
      if (!name.endsWith('.json')) {
        await rm(path, { force: true });
        continue;
      }
      try {
        records.push(JSON.parse(await readFile(path, 'utf8')) as SandboxRecord);
      } catch (error) {
        log.error(
          { path, err: error },
          'the record of a sandbox cannot be read; control is asked what it is to be',
        );
        unreadable.push(name.slice(0, -'.json'.length));
      }
    }
    return { records, unreadable };
  }

  /**
   * Mode 0600: other users of this machine must not read the environment. A registry's password is not written: control
   * sends it again with each link.
   */
  async save(record: SandboxRecord): Promise<void> {
    const path = this.path(record.assignment.vm_id);
    const next = `${path}.next`;
    try {
      await writeFile(next, JSON.stringify(withoutCredential(record)), { mode: 0o600 });
      await rename(next, path);
    } catch (error) {
      await rm(next, { force: true });
      throw explainFullDisk(error, next, "the sandbox's record");
    }
  }

  /** Fsyncs the record of a sandbox, if it has one. */
  async makeDurable(vmId: string): Promise<void> {
    try {
      await syncPath(this.path(vmId));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return;
      throw error;
    }
    await syncPath(this.#folder);
  }

  async remove(vmId: string): Promise<void> {
    await rm(this.path(vmId), { force: true });
  }

  /** Path of the record of a sandbox. */
  path(vmId: string): string {
    return join(this.#folder, `${vmId}.json`);
  }
}

/** Undefined when it cannot be parsed: after a power failure it may be empty. */
export function parseRecord(text: string): SandboxRecord | undefined {
  try {
    return JSON.parse(text) as SandboxRecord;
  } catch {
    return undefined;
  }
}

function withoutCredential(record: SandboxRecord): SandboxRecord {
  const { assignment } = record;
  const root = bareRoot(assignment.spec.root);
  return { ...record, assignment: { ...assignment, spec: { ...assignment.spec, root } } };
}

function bareRoot(root: RootSource): RootSource {
  if (root.type === 'dockerfile') return { ...root, credentials: [] };
  if (root.type !== 'registry') return root;
  const { type, ref, digest } = root;
  return { type, ref, ...(digest === undefined ? {} : { digest }) };
}
