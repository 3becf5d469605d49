/** Commits volumes of several hosts in a process of its own as fast as it can, to be killed in the middle of it. */
import { createHash, randomUUID } from 'node:crypto';
import { text } from 'node:stream/consumers';
import { ApiError } from '@releap/contract';
import { openDatabase } from '@releap/database';
import { pino } from 'pino';
import { createBlobs } from '../../src/storage/artifacts/blobs.ts';
import { FolderStore } from '../../src/storage/artifacts/folder-store.ts';
import { commitVolume } from '../../src/storage/volumes/commits.ts';
import { createRunnerVolumes } from '../../src/storage/volumes/runner-volumes.ts';
import { createVolumeUploads } from '../../src/storage/volumes/uploads.ts';

/** A root of this test: the packs that it names. */
export interface TestRoot {
  id: string;
  packs: string[];
}
export interface Committed {
  number: number;
  root: string;
}

const env = (name: string): string => process.env[name] ?? '';
const volume = env('TEST_VOLUME');
const database = openDatabase({
  url: env('TEST_DATABASE_URL'),
  log: pino({ level: 'silent' }),
  connections: 4,
});
const blobs = createBlobs(database, new FolderStore(env('TEST_STORE')));
const onChanged = (): void => undefined;
const volumes = createRunnerVolumes(database, onChanged);
const uploads = createVolumeUploads(database);
const blobOf = (content: string) => ({
  digest: `sha256:${createHash('sha256').update(content).digest('hex')}`,
  bytes: Buffer.byteLength(content),
});

async function upload(runner: string, content: string): Promise<void> {
  const { digest } = blobOf(content);
  const { maxBytes } = await uploads.upload(runner, volume);
  await blobs.put(
    (async function* () {
      yield Buffer.from(content);
    })(),
    { digest, maxBytes },
  );
  await uploads.uploaded(runner, volume, digest);
}

/** Changes the newest tree as a host does that has merged it. */
async function commitOnce(runner: string): Promise<Committed> {
  const { head } = await volumes.read(runner, volume, 0);
  const found = head === null ? undefined : await blobs.get(head.root);
  if (head !== null && found === undefined) throw new Error(`the root of ${head.number} is lost`);
  const packs = found === undefined ? [] : (JSON.parse(await text(found.content)) as TestRoot).packs;
  const dropped = packs.filter(() => Math.random() < 0.3);
  // Content that was there before may return.
  const added = [randomUUID(), `again ${Math.floor(Math.random() * 5)}`].filter(
    (one) => !packs.includes(one),
  );
  const kept = [...packs.filter((one) => !dropped.includes(one)), ...added];
  const root = JSON.stringify({ id: randomUUID(), packs: kept } satisfies TestRoot);
  for (const content of [...added, root]) await upload(runner, content);
  const { number } = await commitVolume({ database, onChanged }, runner, volume, {
    parent: head?.number ?? 0,
    root: blobOf(root),
    blobs: added.map(blobOf),
    dropped: dropped.map((one) => blobOf(one).digest),
    packs: kept.length,
    used_bytes: 0,
    files: 0,
    reason: 'background',
    conflicts: [],
  });
  return { number, root };
}

async function commitOn(runner: string): Promise<void> {
  for (;;) {
    try {
      process.send?.(await commitOnce(runner));
    } catch (error) {
      // Another host was first, or the garbage collector was faster than the commit.
      if (!(error instanceof ApiError) || ![400, 409].includes(error.status)) throw error;
    }
  }
}

process.on('disconnect', () => process.exit());
await Promise.all(env('TEST_RUNNERS').split(' ').map(commitOn));
