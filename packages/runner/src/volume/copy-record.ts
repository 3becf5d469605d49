import { readFile } from 'node:fs/promises';
import { writePrivateFile } from '@releap/certificates/private-file';
import { BlobDigest, MergeConflict, VolumeCommitRequest } from '@releap/contract';
import { Type, type Static, type TSchema } from 'typebox';
import { Compile } from 'typebox/compile';

const orNull = <T extends TSchema>(schema: T) => Type.Union([schema, Type.Null()]);

/** `copy.json`: the state of a copy. It is durable before a step that it announces begins. */
export const CopyRecord = Type.Object({
  size_gb: Type.Integer({ minimum: 1 }),
  /** The manifest that the tree is based on; null: none. */
  base: orNull(Type.Object({ number: Type.Integer({ minimum: 1 }), root: BlobDigest })),
  /** A checkout of this root has begun and is not complete. Nothing of a sandbox is in the tree. */
  checkout: orNull(BlobDigest),
  /** Since when there may be changes that no manifest has, RFC 3339; null: there are none. */
  dirty_since: orNull(Type.String()),
  /** Sandboxes that it is open for. */
  sandboxes: Type.Array(Type.String()),
  /** When it was last opened or closed, RFC 3339. */
  used_at: Type.String(),
  /** Conflicts of merges that no commit has told control of. */
  conflicts: Type.Array(MergeConflict),
  /** A commit that was sent, and that control may have stored. */
  pending: orNull(VolumeCommitRequest),
});
export type CopyRecord = Static<typeof CopyRecord>;

const validator = Compile(CopyRecord);

export function newRecord(sizeGb: number): CopyRecord {
  return {
    size_gb: sizeGb,
    base: null,
    checkout: null,
    dirty_since: null,
    sandboxes: [],
    used_at: new Date().toISOString(),
    conflicts: [],
    pending: null,
  };
}

/** @returns undefined when there is none @throws when it cannot be read: the copy must be kept */
export async function readRecord(path: string): Promise<CopyRecord | undefined> {
  const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  if (text === undefined) return undefined;
  const value: unknown = JSON.parse(text);
  if (!validator.Check(value)) throw new Error(`${path} is not the record of a copy`);
  return value;
}

export async function saveRecord(path: string, record: CopyRecord): Promise<void> {
  await writePrivateFile(path, JSON.stringify(record));
}
