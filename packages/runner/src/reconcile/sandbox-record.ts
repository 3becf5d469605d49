import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { PortMapping, RootSource } from '@releap/contract';
import type { Logger } from 'pino';
import type { Assignment, Observation } from './assignment.ts';
import { explainFullDisk } from '../memory/memory-file.ts';

/**
 * What this machine knows of one sandbox, kept on disk. It is written BEFORE the machine takes anything for
 * the sandbox, so that whatever exists after a crash has a record that names it.
 */
export interface SandboxRecord {
  assignment: Assignment;
  observation: Observation;
  /** Digest of the root image, once it has run: what a persistent sandbox's disk lies on. */
  manifest?: string | undefined;
  /** Where its ports were published last. */
  ports?: PortMapping[] | undefined;
  /** The host's run in which this was written; absent in records of older versions. */
  bootId?: string | undefined;
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
   * One that cannot be read stays: it still says that there is such a sandbox, whose disk is not to be thrown away. Files
   * are replaced whole, but not fsynced at each step: after a power failure one may be empty.
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
   * The environment of a sandbox is its user's: no other user of this machine may read it. A registry's password is not
   * written at all: control says it again with every link.
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

  async remove(vmId: string): Promise<void> {
    await rm(this.path(vmId), { force: true });
  }

  /** Where the record of a sandbox lies, if it has one. */
  path(vmId: string): string {
    return join(this.#folder, `${vmId}.json`);
  }
}

/** Undefined when it cannot be read: after a power failure one may be empty. */
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
