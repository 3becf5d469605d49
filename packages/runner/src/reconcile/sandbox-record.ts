import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Assignment, Observation, PortMapping } from '@releap/contract';
import type { Logger } from 'pino';
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
}

/** The records of all sandboxes on this machine: one JSON file each, replaced atomically. */
export class RecordStore {
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  async load(log: Logger): Promise<SandboxRecord[]> {
    await mkdir(this.#folder, { recursive: true, mode: 0o700 });
    const records: SandboxRecord[] = [];
    for (const name of await readdir(this.#folder)) {
      const path = join(this.#folder, name);
      if (!name.endsWith('.json')) {
        await rm(path, { force: true });
        continue;
      }
      try {
        records.push(JSON.parse(await readFile(path, 'utf8')) as SandboxRecord);
      } catch (error) {
        // Never the result of our own crash (files are replaced whole): the control plane still knows what
        // this sandbox should be, and its leftovers are reclaimed like any orphan's.
        log.error({ path, err: error }, 'unreadable sandbox record dropped');
        await rm(path, { force: true });
      }
    }
    return records;
  }

  /**
   * The environment of a sandbox is its user's: nobody else on this machine may read it. A registry's password is not
   * written at all: control says it again with every link.
   */
  async save(record: SandboxRecord): Promise<void> {
    const path = this.#path(record.assignment.vm_id);
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
    await rm(this.#path(vmId), { force: true });
  }

  #path(vmId: string): string {
    return join(this.#folder, `${vmId}.json`);
  }
}

function withoutCredential(record: SandboxRecord): SandboxRecord {
  const { assignment } = record;
  const { root } = assignment.spec;
  if (root.type !== 'registry') return record;
  const { type, ref, digest } = root;
  const bare = { type, ref, ...(digest === undefined ? {} : { digest }) };
  return { ...record, assignment: { ...assignment, spec: { ...assignment.spec, root: bare } } };
}
