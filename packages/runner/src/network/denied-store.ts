/** What sandboxes were denied on networks that they do not have any more: a bounded file for each, beside its logs. */
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { EgressDenial } from '@releap/contract';
import { Type } from 'typebox';
import { Compile } from 'typebox/compile';

/** The latest kinds of denials of a sandbox that are stored. */
const KINDS_MAX = 512;

const List = Compile(Type.Array(EgressDenial));

export class DeniedStore {
  readonly #pathOf: (vmId: string) => string;

  /** @param pathOf a file for each sandbox, which another part removes with its logs */
  constructor(pathOf: (vmId: string) => string) {
    this.#pathOf = pathOf;
  }

  /** Newest first; undefined when nothing was stored of this sandbox. */
  async read(vmId: string): Promise<EgressDenial[] | undefined> {
    try {
      const value: unknown = JSON.parse(await readFile(this.#pathOf(vmId), 'utf8'));
      return List.Check(value) ? value : undefined;
    } catch {
      return undefined;
    }
  }

  /** Adds to what is stored. */
  async add(vmId: string, denied: readonly EgressDenial[]): Promise<void> {
    const path = this.#pathOf(vmId);
    const list = mergeDenials((await this.read(vmId)) ?? [], denied).slice(0, KINDS_MAX);
    await mkdir(dirname(path), { recursive: true, mode: 0o700 });
    await writeFile(`${path}.new`, JSON.stringify(list), { mode: 0o600 });
    await rename(`${path}.new`, path);
  }
}

/** One entry for each kind, newest first. */
export function mergeDenials(...lists: readonly (readonly EgressDenial[])[]): EgressDenial[] {
  const merged = new Map<string, EgressDenial>();
  for (const entry of lists.flat()) {
    const { protocol, address, port, name, reason } = entry;
    const key = JSON.stringify([protocol, address, port, name, reason]);
    const known = merged.get(key);
    merged.set(key, known === undefined ? entry : sum(known, entry));
  }
  return [...merged.values()].sort((a, b) => (a.last_at < b.last_at ? 1 : a.last_at > b.last_at ? -1 : 0));
}

function sum(one: EgressDenial, other: EgressDenial): EgressDenial {
  const firsts = [one.first_at, other.first_at].filter((at) => at !== undefined).sort();
  return {
    ...one,
    count: one.count + other.count,
    ...(firsts[0] === undefined ? {} : { first_at: firsts[0] }),
    last_at: one.last_at > other.last_at ? one.last_at : other.last_at,
  };
}
