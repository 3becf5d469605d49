/**
 * The store of a deployment: immutable content, named by its digest. Control servers alone access it; runners read and
 * write through the internal listener. A folder (folder-store.ts) or an S3 bucket (s3-store.ts).
 */
import type { Readable } from 'node:stream';
import { ApiError, badRequest, unavailable } from '@releap/contract';
import { RefusableError } from '../../platform/http/refusable-error.ts';

export interface Blob {
  /** `sha256:<hex>` */
  digest: string;
  bytes: number;
}

export interface PutOptions {
  /** More is refused. */
  maxBytes: number;
  /** Other content is refused. Computed when absent. */
  digest?: string;
  signal?: AbortSignal | undefined;
  /** Called when all of the content has been checked, before it becomes visible. A failure stores nothing. */
  onVerified?: ((blob: Blob) => Promise<void>) | undefined;
}

export interface BlobStore {
  /**
   * Stores what `source` yields; resolves when it is durable. Until then nothing of it is visible.
   * @throws BlobError: too large, another digest, no space
   */
  put(source: AsyncIterable<Uint8Array>, options: PutOptions): Promise<Blob>;
  /** Undefined: not there. Destroy `content` when it is not read to its end. */
  get(digest: string, signal?: AbortSignal): Promise<{ bytes: number; content: Readable } | undefined>;
  /** Undefined: not there. */
  stat(digest: string): Promise<{ bytes: number } | undefined>;
  /** Succeeds when it is not there. */
  delete(digest: string): Promise<void>;
  list(): AsyncIterable<Blob & { modifiedAt: Date }>;
  /** Removes what uploads that began before this and never ended have left. @returns how many */
  removeUnfinished(before: Date): Promise<number>;
}

export type BlobFailure =
  | 'too-large'
  /** The content has another digest than the one stated. */
  | 'digest'
  | 'no-space'
  /** The store cannot be reached, or refuses. */
  | 'unavailable';

/** Its message is fit for the caller of a request; it contains no credential. */
export class BlobError extends RefusableError {
  override name = 'BlobError';
  readonly failure: BlobFailure;

  constructor(failure: BlobFailure, message: string, options?: ErrorOptions) {
    super(message, options);
    this.failure = failure;
  }

  /** The response to a request whose content could not be stored or read. */
  refusal(): ApiError {
    const { failure, message } = this;
    if (failure === 'too-large' || failure === 'digest') return badRequest(message);
    return new ApiError(503, `${message}: try again later`, {
      headers: unavailable('').headers,
      cause: this,
    });
  }
}

const DIGEST = /^sha256:([0-9a-f]{64})$/;

export function isBlobDigest(text: string): boolean {
  return DIGEST.test(text);
}

/** The hexadecimal part. @throws for anything else: it becomes part of a path */
export function hexOf(digest: string): string {
  const hex = DIGEST.exec(digest)?.[1];
  if (hex === undefined) throw new TypeError(`${JSON.stringify(digest)} is not the digest of a blob`);
  return hex;
}
