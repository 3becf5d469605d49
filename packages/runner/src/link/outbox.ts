import type { BuildResult, Observation, RunnerMessage, SnapshotObservation } from '@releap/contract';

type Numbered = Extract<RunnerMessage, { seq: number }>;

/**
 * What the runner has said and control has not yet acknowledged. At most one observation a sandbox and one
 * result a job are kept: a newer one replaces the older, because control only needs to know what is now.
 * That bounds the outbox by what the runner holds, however long the link is down.
 */
export class Outbox {
  #seq = 0;
  readonly #pending = new Map<string, Numbered>();

  observe(observation: Observation): RunnerMessage {
    return this.#put(`vm:${observation.vm_id}`, {
      type: 'observe',
      seq: ++this.#seq,
      observations: [observation],
    });
  }

  observeSnapshot(observation: SnapshotObservation): RunnerMessage {
    return this.#put(`snapshot:${observation.snapshot_id}`, {
      type: 'observe-snapshots',
      seq: ++this.#seq,
      observations: [observation],
    });
  }

  buildResult(result: BuildResult): RunnerMessage {
    return this.#put(`job:${result.job_id}`, { type: 'build-result', seq: ++this.#seq, result });
  }

  /** Drops all that control has safely stored. Returns the messages that were dropped. */
  acknowledge(seq: number): RunnerMessage[] {
    const done: RunnerMessage[] = [];
    for (const [key, message] of this.#pending) {
      if (message.seq > seq) continue;
      this.#pending.delete(key);
      done.push(message);
    }
    return done;
  }

  /** Everything to say again after a reconnect, oldest first. */
  unacknowledged(): RunnerMessage[] {
    return [...this.#pending.values()].sort((a, b) => a.seq - b.seq);
  }

  #put(key: string, message: Numbered): RunnerMessage {
    this.#pending.set(key, message);
    return message;
  }
}
