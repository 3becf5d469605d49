/**
 * The form of a backup: a tar archive of `header.json`, numbered parts, and the manifest as the last part.
 *
 * Each part is compressed and then sealed: encrypted and authenticated, or, in a plain backup, preceded by its SHA-256. The seal covers
 * the header, the name and the number of the part, so parts cannot be exchanged, left out or taken from another backup.
 */
import { createHash } from 'node:crypto';
import { promisify } from 'node:util';
import { zstdCompress, zstdDecompress } from 'node:zlib';
import { seal, unseal } from '@releap/control/backup';
import { Type, type Static } from 'typebox';
import { Encryption } from './passphrase.ts';

export const FORMAT = 1;
export const HEADER_NAME = 'header.json';
export const MANIFEST_NAME = 'manifest';
/** Content of a part before it is compressed. A single row may be larger. */
export const PART_BYTES = 4 * 1024 * 1024;
/** A row has at most 1 GiB in PostgreSQL, and those of the service much less: bounds the memory for a damaged or hostile file. */
export const PART_BYTES_MAX = 256 * 1024 * 1024;

export const Header = Type.Object({
  format: Type.Integer(),
  id: Type.String({ pattern: '^[0-9a-f-]{36}$' }),
  created_at: Type.String(),
  /** Of the program that made it. */
  version: Type.String(),
  /** The number of the newest migration. */
  schema: Type.Integer({ minimum: 1 }),
  deployment_id: Type.String({ pattern: '^[0-9a-f-]{36}$' }),
  encryption: Type.Union([Encryption, Type.Null()]),
});
export type Header = Static<typeof Header>;

const Count = Type.Integer({ minimum: 0 });
const Names = Type.Array(Type.String());

export const Manifest = Type.Object({
  migrations: Type.Array(Type.Object({ id: Count, name: Type.String(), checksum: Type.String() })),
  tables: Type.Array(Type.Object({ name: Type.String(), columns: Names, partitions: Names, rows: Count })),
  sequences: Type.Array(Type.Object({ name: Type.String(), value: Type.String() })),
  /** Names of files (home-files.ts). */
  files: Names,
  store: Type.Object({
    type: Type.Union([Type.Literal('folder'), Type.Literal('s3')]),
    /** Whether the blobs are in this backup. */
    included: Type.Boolean(),
    blobs: Count,
    bytes: Count,
  }),
  /** The variables that the backup was made with; those of secrets as `***`. */
  settings: Type.Record(Type.String(), Type.String()),
});
export type Manifest = Static<typeof Manifest>;

/** Seals and opens parts, which come in one order. */
export class Sealer {
  readonly #key: Buffer | undefined;
  readonly #header: Buffer;
  #number = 0;

  /** @param header the bytes of `header.json` */
  constructor(header: Uint8Array, key: Buffer | undefined) {
    this.#key = key;
    this.#header = createHash('sha256').update(header).digest();
  }

  async close(name: string, content: Uint8Array): Promise<Buffer> {
    const body = await promisify(zstdCompress)(content);
    const bound = this.#bound(name);
    if (this.#key !== undefined) return seal(this.#key, body, bound);
    return Buffer.concat([digestOf(bound, body), body]);
  }

  /** @throws when the part is not the one that was closed at this place */
  async open(name: string, sealed: Buffer): Promise<Buffer> {
    const bound = this.#bound(name);
    let body: Buffer;
    try {
      body = this.#key === undefined ? withoutDigest(sealed, bound) : unseal(this.#key, sealed, bound);
    } catch (error) {
      throw new Error(`the backup is damaged: its part ${name} is not what was written`, { cause: error });
    }
    return await promisify(zstdDecompress)(body, { maxOutputLength: PART_BYTES_MAX });
  }

  #bound(name: string): Buffer {
    return Buffer.concat([this.#header, Buffer.from(`${this.#number++}\0${name}`)]);
  }
}

const DIGEST_BYTES = 32;

function digestOf(bound: Buffer, body: Buffer): Buffer {
  return createHash('sha256').update(bound).update('\0').update(body).digest();
}

function withoutDigest(sealed: Buffer, bound: Buffer): Buffer {
  const body = sealed.subarray(DIGEST_BYTES);
  if (!digestOf(bound, body).equals(sealed.subarray(0, DIGEST_BYTES))) throw new Error('another checksum');
  return body;
}
