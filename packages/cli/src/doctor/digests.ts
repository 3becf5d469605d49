/** Reads the immutable files of sandboxes and snapshots again, and compares them with their recorded digests. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import type { Check } from './check.ts';

/** Folders below `runner/` whose folders have a disk, or one in `keep/`. */
const ROOTS = ['vms', 'snapshots', 'quarantine/sandboxes', 'quarantine/snapshots'];
const SHOWN = 5;

interface Recorded {
  path: string;
  bytes: number | null;
  sha256: string | null;
}

/** @param tell hears what is read */
export async function checkDigests(
  home: string,
  signal: AbortSignal,
  tell: (what: string) => void,
): Promise<Check> {
  const damaged: string[] = [];
  /** Files are shared by hard links, and read once. */
  const read = new Set<string>();
  let bytes = 0;
  let unknown = 0;
  for await (const { path, ...recorded } of recordedFiles(join(home, 'runner'))) {
    signal.throwIfAborted();
    const file = await stat(path).catch(() => undefined);
    if (file === undefined) {
      damaged.push(`${path} is missing`);
      continue;
    }
    const inode = `${file.dev}:${file.ino}`;
    if (read.has(inode)) continue;
    if (recorded.sha256 === null) {
      unknown += 1;
      continue;
    }
    read.add(inode);
    tell(`reading ${path}`);
    bytes += file.size;
    if (file.size !== recorded.bytes)
      damaged.push(`${path} has ${file.size} bytes instead of ${recorded.bytes}`);
    else if ((await digest(path, signal)) !== recorded.sha256)
      damaged.push(`${path} is not what was written there`);
  }
  const more = damaged.length > SHOWN ? `; and ${damaged.length - SHOWN} more` : '';
  const sound = `${read.size - damaged.length} files of disks and snapshots are what was written (${(bytes / 1024 ** 3).toFixed(1)} GiB read)`;
  return {
    id: 'digests',
    title: 'Disks',
    status: damaged.length > 0 ? 'damaged' : 'ok',
    detail:
      damaged.length > 0
        ? damaged.slice(0, SHOWN).join('; ') + more
        : `${sound}${unknown > 0 ? `; ${unknown} have no digest yet` : ''}`,
  };
}

async function* recordedFiles(folder: string): AsyncGenerator<Recorded> {
  for (const root of ROOTS) {
    const names = await readdir(join(folder, root)).catch(() => [] as string[]);
    for (const name of names) {
      for (const disk of [join(folder, root, name), join(folder, root, name, 'keep')])
        yield* recordedIn(disk);
    }
  }
}

/** What the manifests in a folder say (disk.json, snapshot.json). */
async function* recordedIn(folder: string): AsyncGenerator<Recorded> {
  const disk = (await manifest(folder, 'disk.json')) as
    | { layers?: { file: string; bytes: number | null; sha256: string | null }[] }
    | undefined;
  // The last one of a sandbox is written to, and has none.
  for (const { file, ...rest } of disk?.layers ?? []) yield { path: join(folder, file), ...rest };
  const snapshot = (await manifest(folder, 'snapshot.json')) as
    | { memory?: { objects?: Record<string, { bytes: number | null; sha256: string | null }> } }
    | undefined;
  for (const [name, { bytes, sha256 }] of Object.entries(snapshot?.memory?.objects ?? {}))
    yield { path: join(folder, name), bytes, sha256 };
}

async function manifest(folder: string, name: string): Promise<unknown> {
  try {
    return JSON.parse(await readFile(join(folder, name), 'utf8')) as unknown;
  } catch {
    return undefined;
  }
}

async function digest(path: string, signal: AbortSignal): Promise<string> {
  const hash = createHash('sha256');
  await pipeline(createReadStream(path, { signal }), hash);
  return hash.digest('hex');
}
