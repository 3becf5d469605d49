/** Reads and writes the deployment's store, through the internal listener of the control plane. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, rm } from 'node:fs/promises';
import { Readable } from 'node:stream';
import type { ReadableStream } from 'node:stream/web';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  ArtifactRecord,
  BLOB_PATH,
  DELETED_PROJECTS_MAX,
  DELETED_PROJECTS_PATH,
  DeletedProjectsResponse,
  MissingBlobsResponse,
  validate,
  type ArtifactPart,
} from '@releap/contract';

/** A part of an artifact, and the file here that has its content. */
export interface LocalPart extends ArtifactPart {
  path: string;
}

/** What an uploaded blob is for. */
export type BlobOwner = { location: string } | { volume: string };

export interface StoreClientOptions {
  /** Internal listener of the control plane. */
  controlUrl: string;
  /** Default: without TLS, or as authorities of this machine say. */
  fetch?: typeof fetch;
  /** The runner's credential. */
  credential: () => Promise<string>;
  /** Before a transfer that has failed is repeated for the first time; shorter in tests. */
  pauseMs?: number;
  /** Silence after which a transfer is given up; shorter in tests. */
  stallMs?: number;
}

/** Most attempts of one transfer, while control cannot be reached or its store fails. */
const ATTEMPTS = 5;
const PAUSE_MS = 1_000;
const ANSWER_MS = 30_000;
/** Of a transfer: nothing of it is sent or received for so long. The control plane asks a silent store again after a minute. */
const STALL_MS = 120_000;

/** Control or its store has refused. */
export class StoreError extends Error {
  override name = 'StoreError';
  readonly status: number;
  /** The body of the answer, if it was JSON. */
  readonly answer: unknown;

  constructor(status: number, message: string, answer?: unknown) {
    super(message);
    this.status = status;
    this.answer = answer;
  }
}

/** The store was silent for too long: the caller reports it instead of waiting for another attempt. */
class StoreStalledError extends StoreError {
  override name = 'StoreStalledError';

  constructor(digest: string, ms: number) {
    super(504, `the store was silent for ${ms / 1000} s while ${digest} was transferred`);
  }
}

export class StoreClient {
  readonly #options: StoreClientOptions;

  constructor(options: StoreClientOptions) {
    this.#options = options;
  }

  /** The parts of an artifact. @param ref its id, or the digest of an image @throws StoreError 404, 409: not stored yet */
  async artifact(ref: string, signal: AbortSignal): Promise<ArtifactRecord> {
    const body = await this.call('GET', `/internal/artifacts/${ref}`, undefined, signal);
    return validate(ArtifactRecord, 'body', body);
  }

  /** Those of these blobs that must be uploaded. */
  async missing(locationId: string, digests: readonly string[], signal: AbortSignal): Promise<Set<string>> {
    const path = `/internal/artifact-locations/${locationId}/missing`;
    const body = await this.call('POST', path, { digests }, signal);
    return new Set(validate(MissingBlobsResponse, 'body', body).missing);
  }

  /** Those of these projects that have been deleted. */
  async deletedProjects(projects: readonly string[], signal: AbortSignal): Promise<string[]> {
    const body = { projects: projects.slice(0, DELETED_PROJECTS_MAX) };
    const response = await this.call('POST', DELETED_PROJECTS_PATH, body, signal);
    return validate(DeletedProjectsResponse, 'body', response).deleted;
  }

  async upload(
    owner: BlobOwner,
    { digest, path }: Pick<LocalPart, 'digest' | 'path'>,
    signal: AbortSignal,
  ): Promise<void> {
    const target = `${blobPath(digest)}?${new URLSearchParams(owner).toString()}`;
    await this.#transferring(digest, signal, async (all, moved) => {
      const content = createReadStream(path);
      content.on('data', moved).pause();
      try {
        await this.#request('PUT', target, all, {
          headers: { 'content-type': 'application/octet-stream' },
          body: Readable.toWeb(content),
          duplex: 'half',
        });
      } finally {
        content.destroy();
      }
    });
  }

  /** The content of a blob, which the caller verifies. */
  async open(digest: string, signal: AbortSignal): Promise<AsyncIterable<Uint8Array>> {
    const response = await this.#request('GET', blobPath(digest), signal, {});
    if (response.body === null) throw new StoreError(502, `the store sent nothing for ${digest}`);
    return response.body as ReadableStream<Uint8Array>;
  }

  /** Writes a blob to a new file, and verifies it. The file is not durable yet, and is removed when this fails. */
  async download(
    { digest, bytes }: Pick<ArtifactPart, 'digest' | 'bytes'>,
    path: string,
    signal: AbortSignal,
  ): Promise<void> {
    await this.#transferring(digest, signal, async (all, moved) => {
      const content = await this.open(digest, all);
      await rm(path, { force: true });
      const file = await open(path, 'wx', 0o600);
      try {
        const hash = createHash('sha256');
        let received = 0;
        for await (const chunk of content) {
          moved();
          received += chunk.byteLength;
          if (received > bytes) break;
          hash.update(chunk);
          await file.writeFile(chunk);
        }
        if (received !== bytes || `sha256:${hash.digest('hex')}` !== digest)
          throw new StoreError(502, `what the store sent for ${digest} is something else`);
      } catch (error) {
        await rm(path, { force: true });
        throw error;
      } finally {
        await file.close();
      }
    });
  }

  /** An operation that may be repeated, with JSON both ways. @throws StoreError */
  async call(method: string, path: string, body: unknown, signal: AbortSignal): Promise<unknown> {
    return await this.#retrying(signal, async () => {
      const response = await this.#request(
        method,
        path,
        AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MS)]),
        body === undefined
          ? {}
          : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) },
      );
      return await response.json();
    });
  }

  async #request(method: string, path: string, signal: AbortSignal, init: RequestInit): Promise<Response> {
    const { controlUrl, credential, fetch: send = fetch } = this.#options;
    const response = await send(new URL(path, controlUrl), {
      ...init,
      method,
      headers: { ...(init.headers as Record<string, string>), authorization: `Bearer ${await credential()}` },
      signal,
    });
    if (response.ok) return response;
    const answer = (await response.json().catch(() => undefined)) as { error?: unknown } | undefined;
    const why = typeof answer?.error === 'string' ? answer.error.slice(0, 300) : `status ${response.status}`;
    throw new StoreError(response.status, why, answer);
  }

  /** Repeats a transfer like `#retrying`. @throws StoreStalledError at once: callers that have waited so long decide themselves */
  async #transferring(
    digest: string,
    signal: AbortSignal,
    transfer: (signal: AbortSignal, moved: () => void) => Promise<void>,
  ): Promise<void> {
    const { stallMs = STALL_MS } = this.#options;
    await this.#retrying(signal, async () => {
      const stalled = new AbortController();
      const silence = setTimeout(() => stalled.abort(new StoreStalledError(digest, stallMs)), stallMs);
      try {
        await transfer(AbortSignal.any([signal, stalled.signal]), () => silence.refresh());
      } catch (error) {
        stalled.signal.throwIfAborted();
        throw error;
      } finally {
        clearTimeout(silence);
      }
    });
  }

  /** Repeats what has failed for a reason that may pass. */
  async #retrying<T>(signal: AbortSignal, attempt: () => Promise<T>): Promise<T> {
    const { pauseMs = PAUSE_MS } = this.#options;
    for (let left = ATTEMPTS - 1, pause = pauseMs; ; left -= 1, pause *= 2) {
      try {
        return await attempt();
      } catch (error) {
        signal.throwIfAborted();
        const isFinal =
          error instanceof StoreStalledError || (error instanceof StoreError && error.status < 500);
        if (isFinal || left === 0) throw error;
      }
      await sleep(pause, undefined, { signal });
    }
  }
}

const blobPath = (digest: string): string => BLOB_PATH.replace(':digest', digest);
