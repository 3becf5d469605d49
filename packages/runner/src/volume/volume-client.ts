/** The operations of the control plane on the volumes of this host. */
import {
  COMMIT_VOLUME_PATH,
  MISSING_VOLUME_BLOBS_MAX,
  MISSING_VOLUME_BLOBS_PATH,
  MissingBlobsResponse,
  OPEN_VOLUME_PATH,
  RUNNER_VOLUME_PATH,
  RunnerVolume,
  validate,
  VolumeCommitted,
  VolumeMoved,
  type VolumeCommitRequest,
  type VolumeHead,
} from '@releap/contract';
import { Compile } from 'typebox/compile';
import { StoreError, type StoreClient } from '../artifact/store-client.ts';

const moved = Compile(VolumeMoved);

/** Outcome of a commit: it is the newest manifest, or another commit was first and is the head. */
export type CommitOutcome = { number: number } | { head: VolumeHead };

/** A blob of a volume: a pack or a root. */
export interface VolumeBlob {
  digest: string;
  bytes: number;
}

export class VolumeClient {
  readonly #store: StoreClient;

  constructor(store: StoreClient) {
    this.#store = store;
  }

  /** For a sandbox that will mount it: other hosts are told to commit. @throws StoreError 404: no volume of this host */
  async open(volumeId: string, signal: AbortSignal): Promise<RunnerVolume> {
    const answer = await this.#store.call('POST', pathOf(OPEN_VOLUME_PATH, volumeId), {}, signal);
    return validate(RunnerVolume, 'body', answer);
  }

  /** @param commit the request that other hosts must have fulfilled for `uncommitted` to be false */
  async get(volumeId: string, commit: number, signal: AbortSignal): Promise<RunnerVolume> {
    const path = `${pathOf(RUNNER_VOLUME_PATH, volumeId)}?commit=${commit}`;
    return validate(RunnerVolume, 'body', await this.#store.call('GET', path, undefined, signal));
  }

  /** Those of these blobs that must be uploaded. */
  async missing(volumeId: string, digests: readonly string[], signal: AbortSignal): Promise<Set<string>> {
    const missing = new Set<string>();
    for (let at = 0; at < digests.length; at += MISSING_VOLUME_BLOBS_MAX) {
      const body = { digests: digests.slice(at, at + MISSING_VOLUME_BLOBS_MAX) };
      const answer = await this.#store.call(
        'POST',
        pathOf(MISSING_VOLUME_BLOBS_PATH, volumeId),
        body,
        signal,
      );
      for (const digest of validate(MissingBlobsResponse, 'body', answer).missing) missing.add(digest);
    }
    return missing;
  }

  async upload(volumeId: string, digest: string, file: string, signal: AbortSignal): Promise<void> {
    await this.#store.upload({ volume: volumeId }, { digest, path: file }, signal);
  }

  /** Writes the blob to a new file, verified. */
  async download(blob: VolumeBlob, file: string, signal: AbortSignal): Promise<void> {
    await this.#store.download(blob, file, signal);
  }

  /** May be repeated with the same request: the answer is the same manifest. */
  async commit(volumeId: string, request: VolumeCommitRequest, signal: AbortSignal): Promise<CommitOutcome> {
    try {
      const answer = await this.#store.call('POST', pathOf(COMMIT_VOLUME_PATH, volumeId), request, signal);
      const { number } = validate(VolumeCommitted, 'body', answer);
      return { number };
    } catch (error) {
      if (error instanceof StoreError && error.status === 409 && moved.Check(error.answer)) {
        const { head } = error.answer;
        if (head !== null) return { head };
      }
      throw error;
    }
  }
}

const pathOf = (path: string, volumeId: string): string => path.replace(':id', volumeId);
