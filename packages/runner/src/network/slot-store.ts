/** What a restarted runner must know of each slot: one small file a slot, replaced by rename. */
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { EgressPolicy } from '@releap/contract/netd';

export interface SlotRecord {
  index: number;
  /** `slotLayout` of the code that made it. */
  layout: string;
  /** Absent while the slot is free. */
  holder?: SlotHolder;
  /** There is no slot, and its number is not used yet. */
  released?: boolean;
}

export interface SlotHolder {
  vmId: string;
  egress?: EgressPolicy;
  intercept?: boolean;
}

/**
 * The files are written without fsync: what they describe, namespaces, does not outlive the kernel either, and a
 * killed process loses nothing that it wrote.
 */
export class SlotStore {
  readonly #dir: string;

  constructor(dir: string) {
    this.#dir = dir;
  }

  /** All records that can be read whole. One that cannot be read counts as missing: its slot is made again. */
  async load(): Promise<SlotRecord[]> {
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    const records: SlotRecord[] = [];
    for (const file of await readdir(this.#dir)) {
      const match = /^(\d+)\.json$/.exec(file);
      if (match === null) continue;
      const record = parseRecord(await readFile(join(this.#dir, file), 'utf8'));
      if (record !== undefined && record.index === Number(match[1])) records.push(record);
    }
    return records.sort((a, b) => a.index - b.index);
  }

  async save(record: SlotRecord): Promise<void> {
    const path = this.#path(record.index);
    await writeFile(`${path}.new`, `${JSON.stringify(record)}\n`, { mode: 0o600 });
    await rename(`${path}.new`, path);
  }

  async remove(index: number): Promise<void> {
    await rm(this.#path(index), { force: true });
  }

  /** Removes the folder with all in it. */
  async clear(): Promise<void> {
    await rm(this.#dir, { recursive: true, force: true });
  }

  #path(index: number): string {
    return join(this.#dir, `${index}.json`);
  }
}

function parseRecord(text: string): SlotRecord | undefined {
  let value: Partial<SlotRecord> | null;
  try {
    value = JSON.parse(text) as Partial<SlotRecord> | null;
  } catch {
    return undefined;
  }
  if (typeof value?.index !== 'number' || typeof value.layout !== 'string') return undefined;
  if (value.holder !== undefined && typeof value.holder.vmId !== 'string') return undefined;
  return value as SlotRecord;
}
