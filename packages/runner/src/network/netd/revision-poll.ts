/** Keeps a helper process supplied with what control has for sandboxes, each with a revision. */
import { setTimeout as sleep } from 'node:timers/promises';
import { RUNNER_REVISIONS_MAX } from '@releap/contract';
import { RateLimit } from '@releap/contract/netd';
import type { Logger } from 'pino';

/** How soon the helper has what has changed. */
const POLL_MS = 2_000;
const RETRY_MS = 1_000;
const LOG_LINES = { perSecond: 1, burst: 20 };

export interface Polled {
  /** Of what the helper has; undefined: nothing yet. */
  revision?: string | undefined;
}

interface Change {
  id: string;
  revision: string;
}

export interface RevisionPollOptions<Sandbox extends Polled, Changed extends Change, Connection> {
  /** By id. A sandbox that is put again is another object. */
  sandboxes: ReadonlyMap<string, Sandbox>;
  /** Those of these sandboxes for which control has something else than the revision says. */
  changed: (asked: readonly { id: string; revision?: string }[]) => Promise<{
    sandboxes: readonly Changed[];
    /** Not all of them are in the answer. */
    more: boolean;
  }>;
  /** Whether control can have something for it. Default: always. */
  isAsked?: (sandbox: Sandbox) => boolean;
  /** Passes on what control has. */
  put: (connection: Connection, sandbox: Sandbox, changed: Changed) => Promise<void> | void;
  /** The helper has everything of the sandboxes that it was put. */
  onUpdated?: () => void;
  /** In the log: what cannot be asked for. */
  subject: string;
  log: Logger;
}

interface HelperLink {
  readonly lost: Promise<unknown>;
  tell(message: { type: 'synced' }): void;
}

export class RevisionPoll<Sandbox extends Polled, Changed extends Change, Connection extends HelperLink> {
  readonly #options: RevisionPollOptions<Sandbox, Changed, Connection>;
  readonly #logged = new RateLimit(LOG_LINES);
  #wake = new AbortController();

  constructor(options: RevisionPollOptions<Sandbox, Changed, Connection>) {
    this.#options = options;
  }

  /** Asks at once: there is another sandbox. */
  wake(): void {
    this.#wake.abort();
  }

  /** Supplies a helper that has just been connected, until it is lost. */
  async serve(connection: Connection): Promise<void> {
    for (const [, sandbox] of this.#asked()) sandbox.revision = undefined;
    const lost = new AbortController();
    void connection.lost.then(() => lost.abort());
    let synced = false;
    while (!lost.signal.aborted) {
      this.#wake = new AbortController();
      const isComplete = await this.#update(connection);
      // Sandboxes of before this runner go once it has put all of its own.
      if (isComplete && !synced) {
        connection.tell({ type: 'synced' });
        synced = true;
      }
      const signal = AbortSignal.any([lost.signal, this.#wake.signal]);
      await sleep(isComplete ? POLL_MS : RETRY_MS, undefined, { signal, ref: false }).catch(() => undefined);
    }
  }

  #asked(): [string, Sandbox][] {
    const { sandboxes, isAsked = () => true } = this.#options;
    return [...sandboxes].filter(([, sandbox]) => isAsked(sandbox));
  }

  /** Asks for what has changed, and passes it on. @returns whether control has answered */
  async #update(connection: Connection): Promise<boolean> {
    const { sandboxes, changed, put, onUpdated, subject, log } = this.#options;
    const asked = this.#asked().map(([id, sandbox]) => ({ id, sandbox, revision: sandbox.revision }));
    try {
      for (let more = true, at = 0; at < asked.length; at += more ? 0 : RUNNER_REVISIONS_MAX) {
        const batch = asked.slice(at, at + RUNNER_REVISIONS_MAX);
        const answer = await changed(
          batch.map(({ id, revision }) => ({ id, ...(revision === undefined ? {} : { revision }) })),
        );
        for (const one of answer.sandboxes) {
          const known = batch.find(({ id }) => id === one.id);
          if (known === undefined) continue;
          known.revision = one.revision;
          // Another one of this id has been put, or it was removed.
          if (sandboxes.get(one.id) !== known.sandbox) continue;
          await put(connection, known.sandbox, one);
          known.sandbox.revision = one.revision;
        }
        more = answer.more;
      }
      onUpdated?.();
      return true;
    } catch (error) {
      // What the helper has stays in use.
      if (this.#logged.take())
        log.warn({ why: String(error) }, `${subject} of sandboxes cannot be asked for`);
      return false;
    }
  }
}
