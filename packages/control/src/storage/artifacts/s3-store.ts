/**
 * The store in a bucket of an S3-compatible service: objects `<prefix>/sha256/<hex>`. Large ones are uploaded in parts,
 * which become visible when the upload is completed.
 */
import { randomUUID } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import {
  AbortMultipartUploadCommand,
  CompleteMultipartUploadCommand,
  CreateMultipartUploadCommand,
  DeleteObjectCommand,
  GetObjectCommand,
  HeadObjectCommand,
  paginateListObjectsV2,
  ListMultipartUploadsCommand,
  S3Client,
  S3ServiceException,
  PutObjectCommand,
  UploadPartCommand,
  type CompletedPart,
} from '@aws-sdk/client-s3';
import { BlobError, hexOf, isBlobDigest, type Blob, type BlobStore, type PutOptions } from './blob-store.ts';
import { writeVerified } from './folder-store.ts';
import { readS3Credentials, type S3CredentialSource } from './s3-credentials.ts';
import { verifyContent } from './verify-content.ts';

export interface S3StoreOptions {
  bucket: string;
  /** Without slashes at its ends; empty for none. */
  prefix: string;
  /** Absent: AWS. */
  endpoint?: string | undefined;
  region: string;
  /** Absent: the default ones of the AWS SDK (its environment variables, profile files, instance roles). */
  credentials?: S3CredentialSource | undefined;
  /** Holds content while its digest is computed; created if it is missing. */
  spoolFolder: string;
}

/** S3 allows 10,000 parts, of at least 5 MiB. One of them is in memory at a time. */
const PARTS_MAX = 9_000;
const PART_MIN_BYTES = 8 * 1024 * 1024;
const EMPTY = Buffer.alloc(0);
const CONNECT_MS = 10_000;
/** Longest silence of the service. */
const IDLE_MS = 60_000;

export class S3Store implements BlobStore {
  readonly #client: S3Client;
  readonly #bucket: string;
  readonly #prefix: string;
  readonly #spool: string;

  constructor({ bucket, prefix, endpoint, region, credentials, spoolFolder }: S3StoreOptions) {
    this.#client = new S3Client({
      region,
      ...(endpoint === undefined ? {} : { endpoint, forcePathStyle: true }),
      ...(credentials === undefined ? {} : { credentials: () => readS3Credentials(credentials) }),
      // Checksums in trailers are not understood by many S3-compatible services. Digests are verified here.
      requestChecksumCalculation: 'WHEN_REQUIRED',
      responseChecksumValidation: 'WHEN_REQUIRED',
      requestHandler: { connectionTimeout: CONNECT_MS, socketTimeout: IDLE_MS },
    });
    this.#bucket = bucket;
    this.#prefix = `${prefix === '' ? '' : `${prefix}/`}sha256/`;
    this.#spool = spoolFolder;
  }

  async put(source: AsyncIterable<Uint8Array>, options: PutOptions): Promise<Blob> {
    return options.digest === undefined
      ? await this.#putSpooled(source, options)
      : await this.#upload(source, { ...options, digest: options.digest });
  }

  /** An object's name is its digest, which is known only when all of the content was read. */
  async #putSpooled(source: AsyncIterable<Uint8Array>, options: PutOptions): Promise<Blob> {
    await mkdir(this.#spool, { recursive: true, mode: 0o700 });
    const path = join(this.#spool, randomUUID());
    try {
      const { digest, bytes } = await writeVerified(path, source, { ...options, onVerified: undefined });
      return await this.#upload(createReadStream(path), { ...options, digest, maxBytes: bytes });
    } finally {
      await rm(path, { force: true });
    }
  }

  /**
   * Completes nothing before all of the content has been verified. `Upload` of @aws-sdk/lib-storage would go on with the
   * request that it sends after an abort, so that a small object can appear, and returns before the upload is removed.
   */
  async #upload(source: AsyncIterable<Uint8Array>, options: PutOptions & { digest: string }): Promise<Blob> {
    const { digest, maxBytes, signal } = options;
    let blob: Blob | undefined;
    const verified = verifyContent(source, options, (whole) => (blob = whole));
    const parts = inParts(verified, Math.max(PART_MIN_BYTES, Math.ceil(maxBytes / PARTS_MAX)));
    try {
      const first = await parts.next();
      if (blob !== undefined) await this.#putWhole(digest, first.done === true ? EMPTY : first.value, signal);
      else await this.#putParts(digest, first.value as Buffer, parts, signal);
    } catch (error) {
      signal?.throwIfAborted();
      throw explain(error, 'storing a blob');
    } finally {
      // Ends the source too, so that a failed upload does not leave it open.
      await parts.return(undefined);
    }
    if (blob === undefined) throw new Error('the content has no end');
    return blob;
  }

  async #putWhole(digest: string, content: Buffer, signal: AbortSignal | undefined): Promise<void> {
    await this.#client.send(
      new PutObjectCommand({ ...this.#object(digest), Body: content }),
      withSignal(signal),
    );
  }

  async #putParts(
    digest: string,
    first: Buffer,
    rest: AsyncIterable<Buffer>,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const object = this.#object(digest);
    const send = withSignal(signal);
    const { UploadId } = await this.#client.send(new CreateMultipartUploadCommand(object), send);
    const upload = { ...object, UploadId };
    const sent: CompletedPart[] = [];
    try {
      const sendPart = async (content: Buffer): Promise<void> => {
        const PartNumber = sent.length + 1;
        const command = new UploadPartCommand({ ...upload, PartNumber, Body: content });
        const { ETag } = await this.#client.send(command, send);
        sent.push({ PartNumber, ETag });
      };
      await sendPart(first);
      for await (const part of rest) await sendPart(part);
      await this.#client.send(
        new CompleteMultipartUploadCommand({ ...upload, MultipartUpload: { Parts: sent } }),
        send,
      );
    } catch (error) {
      // What this leaves is removed by `removeUnfinished`.
      await this.#client.send(new AbortMultipartUploadCommand(upload)).catch(() => undefined);
      throw error;
    }
  }

  async get(digest: string, signal?: AbortSignal): Promise<{ bytes: number; content: Readable } | undefined> {
    const object = this.#object(digest);
    const found = await this.#ask('reading a blob', () =>
      this.#client.send(new GetObjectCommand(object), withSignal(signal)),
    );
    if (found === undefined) return undefined;
    if (!(found.Body instanceof Readable) || found.ContentLength === undefined)
      throw new BlobError('unavailable', 'the store sent no content');
    return { bytes: found.ContentLength, content: found.Body };
  }

  async stat(digest: string): Promise<{ bytes: number } | undefined> {
    const object = this.#object(digest);
    const found = await this.#ask('asking for a blob', () =>
      this.#client.send(new HeadObjectCommand(object)),
    );
    return found && { bytes: found.ContentLength ?? 0 };
  }

  async delete(digest: string): Promise<void> {
    const object = this.#object(digest);
    await this.#ask('deleting a blob', () => this.#client.send(new DeleteObjectCommand(object)));
  }

  async *list(): AsyncIterable<Blob & { modifiedAt: Date }> {
    const where = { Bucket: this.#bucket, Prefix: this.#prefix };
    try {
      for await (const page of paginateListObjectsV2({ client: this.#client }, where)) {
        for (const { Key = '', Size = 0, LastModified } of page.Contents ?? []) {
          const digest = `sha256:${Key.slice(this.#prefix.length)}`;
          if (isBlobDigest(digest)) yield { digest, bytes: Size, modifiedAt: LastModified ?? new Date() };
        }
      }
    } catch (error) {
      throw explain(error, 'listing blobs');
    }
  }

  async removeUnfinished(before: Date): Promise<number> {
    let removed = 0;
    const where = { Bucket: this.#bucket, Prefix: this.#prefix };
    let next: { KeyMarker?: string | undefined; UploadIdMarker?: string | undefined } | undefined = {};
    while (next !== undefined) {
      const marker: object = next;
      const page = await this.#ask('listing unfinished uploads', () =>
        this.#client.send(new ListMultipartUploadsCommand({ ...where, ...marker })),
      );
      for (const { Key, UploadId, Initiated } of page?.Uploads ?? []) {
        if (Initiated === undefined || Initiated >= before) continue;
        await this.#ask('ending an unfinished upload', () =>
          this.#client.send(new AbortMultipartUploadCommand({ Bucket: this.#bucket, Key, UploadId })),
        );
        removed += 1;
      }
      next =
        page?.IsTruncated === true
          ? { KeyMarker: page.NextKeyMarker, UploadIdMarker: page.NextUploadIdMarker }
          : undefined;
    }
    return removed;
  }

  close(): void {
    this.#client.destroy();
  }

  #object(digest: string): { Bucket: string; Key: string } {
    return { Bucket: this.#bucket, Key: `${this.#prefix}${hexOf(digest)}` };
  }

  /** Undefined when the object or upload does not exist. */
  async #ask<T>(what: string, send: () => Promise<T>): Promise<T | undefined> {
    try {
      return await send();
    } catch (error) {
      const missing = ['NoSuchKey', 'NotFound', 'NoSuchUpload'];
      if (error instanceof S3ServiceException && missing.includes(error.name)) return undefined;
      throw explain(error, what);
    }
  }
}

/** The service's own words, without the request that it refused. */
function explain(error: unknown, what: string): unknown {
  if (error instanceof BlobError) return error;
  const { name, message } = error as Error;
  if (name === 'AbortError') return error;
  return new BlobError('unavailable', `the store failed while ${what}: ${name}: ${message}`);
}

function withSignal(signal: AbortSignal | undefined): { abortSignal?: AbortSignal } {
  return signal === undefined ? {} : { abortSignal: signal };
}

/** The content in pieces of this size; the last one may be smaller. */
async function* inParts(source: AsyncIterable<Uint8Array>, bytes: number): AsyncGenerator<Buffer, undefined> {
  let chunks: Uint8Array[] = [];
  let held = 0;
  for await (const chunk of source) {
    for (let at = 0; at < chunk.byteLength; ) {
      const piece = chunk.subarray(at, at + bytes - held);
      chunks.push(piece);
      at += piece.byteLength;
      held += piece.byteLength;
      if (held < bytes) continue;
      yield Buffer.concat(chunks);
      chunks = [];
      held = 0;
    }
  }
  if (held > 0) yield Buffer.concat(chunks);
}
