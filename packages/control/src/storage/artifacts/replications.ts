/** Copies artifacts into the stores of regions that need them. docs/decisions/0078-stores-of-regions.md */
import { queryAll, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { InFlight } from '../../platform/work/in-flight.ts';
import { createWorkLoop } from '../../platform/work/work-loop.ts';
import { BlobError } from './blob-store.ts';
import * as sql from './replica-statements.ts';
import { REPLICATIONS, type ClaimedReplication } from './replica-statements.ts';
import type { OpenStore, Stores } from './stores.ts';

export interface Replications {
  /** There may be something to copy. */
  kick(): void;
  /** Renews claims, ends copies of artifacts that were deleted, and starts those that are due. */
  sweep(): Promise<void>;
  /** Aborts what is in progress; another server may continue it at once. */
  close(): Promise<void>;
}

export interface ReplicationLimits {
  /** Concurrent copies of one server. */
  replications: number;
  /** Longest that one attempt may take, in milliseconds. */
  replicationDeadlineMs: number;
}

export interface ReplicationsOptions {
  database: Database;
  stores: Pick<Stores, 'open'>;
  limits: ReplicationLimits;
  onEnd: (outcome: 'copied' | 'failed' | 'cancelled') => void;
  log: Logger;
}

/** A copy whose server has stopped is claimed by another after this long. */
const LEASE_MS = 30_000;
/** Pause after the first failure; it doubles with each further one. */
const RETRY_MS = 5_000;
const RETRY_MAX_MS = 10 * 60_000;

interface Copy {
  claim: ClaimedReplication;
  abort: AbortController;
}

class CancelledError extends Error {}

export function createReplications(options: ReplicationsOptions): Replications {
  const { database, stores, limits, onEnd, log } = options;
  const { pool } = database;
  const inFlight = new InFlight(limits.replications);
  const copies = new Map<string, Copy>();
  let isClosed = false;

  const loop = createWorkLoop({
    async step() {
      await renew();
      const free = limits.replications - inFlight.size;
      if (free <= 0) return;
      for (const claim of await queryAll(pool, sql.CLAIM, [LEASE_MS, free])) start(claim);
    },
    onError: (error) => log.warn({ err: error }, 'replications were not started; trying later'),
  });

  async function renew(): Promise<void> {
    const before = [...copies.values()];
    const renewed = await REPLICATIONS.renew(
      pool,
      before.map(({ claim }) => claim),
      LEASE_MS,
    );
    for (const { claim, abort } of before)
      if (!renewed.has(REPLICATIONS.keyOf({ ...claim })))
        abort.abort(new CancelledError('nothing needs the copy any more'));
  }

  function start(claim: ClaimedReplication): void {
    const copy = { claim, abort: new AbortController() };
    copies.set(claim.id, copy);
    inFlight.run(
      claim.org_id,
      () => run(copy),
      () => {
        if (copies.get(claim.id) === copy) copies.delete(claim.id);
        if (!isClosed) loop.kick();
      },
    );
  }

  async function run({ claim, abort }: Copy): Promise<void> {
    const { artifact_id: artifact, source_id: source, target_id: target } = claim;
    const about = { artifact, source, target, attempt: claim.attempts };
    const values = REPLICATIONS.values([claim]);
    const timer = setTimeout(
      () => abort.abort(new BlobError('unavailable', 'the copy took too long')),
      limits.replicationDeadlineMs,
    );
    const startedAt = performance.now();
    try {
      const bytes = await copyParts(claim, abort.signal);
      const ended = await queryAll(pool, sql.FINISH, values);
      onEnd(ended.length === 0 ? 'cancelled' : 'copied');
      const ms = Math.round(performance.now() - startedAt);
      if (ended.length > 0) log.info({ ...about, bytes, ms }, 'replicated an artifact');
    } catch (error) {
      await fail(abort.signal.aborted ? abort.signal.reason : error).catch((other: unknown) =>
        log.warn({ err: other, ...about }, 'a failed replication was not recorded; its claim expires'),
      );
    } finally {
      clearTimeout(timer);
    }

    async function fail(error: unknown): Promise<void> {
      if (isClosed) {
        await queryAll(pool, sql.RELEASE, values);
        return;
      }
      if (error instanceof CancelledError) {
        onEnd('cancelled');
        log.info(about, 'a replication was cancelled');
        return;
      }
      onEnd('failed');
      log.warn({ err: error, ...about }, 'an artifact could not be replicated; trying again');
      const pause = Math.min(RETRY_MS * 2 ** Math.min(claim.attempts - 1, 16), RETRY_MAX_MS);
      await queryAll(pool, sql.RETRY, [...values, pause, reasonOf(error)]);
    }
  }

  /** What earlier attempts have copied is there already. @returns the bytes of all parts */
  async function copyParts(claim: ClaimedReplication, signal: AbortSignal): Promise<number> {
    const [source, target] = [
      await side('read', () => stores.open(claim.source_id)),
      await side('write', () => stores.open(claim.target_id)),
    ];
    let all = 0;
    for (const { digest, bytes: text } of await queryAll(pool, sql.PARTS, [claim.artifact_id])) {
      const bytes = Number(text);
      signal.throwIfAborted();
      if (!(await side('write', () => target.blobs.keep({ digest, bytes }))))
        await copyBlob({ source, target }, { digest, bytes }, signal);
      all += bytes;
    }
    signal.throwIfAborted();
    return all;
  }

  return {
    kick: loop.kick,
    sweep: loop.sweep,
    async close() {
      isClosed = true;
      await loop.close();
      for (const { abort } of copies.values()) abort.abort(new CancelledError('the server stops'));
      await inFlight.settled();
    },
  };
}

/** Nothing becomes visible in the target before its digest was verified. */
async function copyBlob(
  { source, target }: Record<'source' | 'target', OpenStore>,
  { digest, bytes }: { digest: string; bytes: number },
  signal: AbortSignal,
): Promise<void> {
  const found = await side('read', () => source.blobs.get(digest, signal));
  if (found === undefined) throw new SideError('read', new Error(`${digest} is not in its home store`));
  const { content } = found;
  let broken: unknown;
  content.once('error', (error) => (broken = error));
  try {
    await target.blobs.put(content, { digest, maxBytes: bytes, signal });
  } catch (error) {
    signal.throwIfAborted();
    const isContent = error instanceof BlobError && ['digest', 'too-large'].includes(error.failure);
    throw new SideError(isContent ? 'damaged' : broken === undefined ? 'write' : 'read', error);
  } finally {
    content.destroy();
  }
}

type Side = 'read' | 'write' | 'damaged';

/** For the tenants who wait for the copy: without addresses and names of stores, which are the operator's and in the log. */
const REASONS: Record<Side, string> = {
  read: 'the home copy could not be read',
  write: 'the store of the region could not be written',
  damaged: 'the home copy is damaged',
};

class SideError extends Error {
  readonly side: Side;

  constructor(at: Side, cause: unknown) {
    super(`${REASONS[at]}: ${(cause as Error).message}`, { cause });
    this.side = at;
  }
}

async function side<T>(at: Side, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw new SideError(at, error);
  }
}

function reasonOf(error: unknown): string {
  if (error instanceof SideError) return REASONS[error.side];
  return error instanceof BlobError ? error.message : 'it failed inside the service';
}
