/**
 * The runner's records of use, on disk until control has stored them. `state.json` is what the ledger continues from, and
 * names the last message that belongs to it; each message is a file. They are written before it, so a message either belongs
 * to the state or is written again with the same content still in the ledger: a crash at any point neither loses nor
 * repeats one. What happens between two states is in a journal.
 */
import {
  appendFileSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { USAGE_READINGS_MAX } from '@releap/contract';
import type { UsagePiece } from '@releap/contract/runner';
import type { Logger } from 'pino';
import { syncPath } from '../disk/sync-path.ts';

/** Most bytes that wait for control; the oldest messages are dropped first. */
const SPOOL_MAX_BYTES = 256 * 1024 * 1024;

export interface UsageMessageFile {
  seq: number;
  pieces: UsagePiece[];
}

interface Saved<State> {
  /** Number of this state: the journal after it has the same. */
  number: number;
  /** Of the last message that belongs to it. */
  seq: number;
  /** Absent before the first commit. */
  state?: State;
}

export interface UsageSpoolOptions {
  /** Absolute. */
  folder: string;
  log: Logger;
  maxBytes?: number;
}

/** @template State what the ledger continues from @template Event an entry of the journal; both as JSON */
export class UsageSpool<State, Event> {
  readonly #folder: string;
  readonly #log: Logger;
  readonly #maxBytes: number;
  #number: number;
  #seq: number;
  /** Waiting messages, oldest first. */
  readonly #waiting: { seq: number; bytes: number }[] = [];
  readonly #restored: { state: State | undefined; events: Event[] };

  constructor({ folder, log, maxBytes = SPOOL_MAX_BYTES }: UsageSpoolOptions) {
    this.#folder = folder;
    this.#log = log;
    this.#maxBytes = maxBytes;
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const { number, seq, state } = this.#readState();
    this.#number = number;
    this.#seq = seq;
    this.#restored = { state, events: this.#readJournal(number) };
    this.#sweep();
  }

  /** The last state, and what has happened since. */
  get restored(): { state: State | undefined; events: readonly Event[] } {
    return this.#restored;
  }

  /** Adds to the journal. */
  append(event: Event): void {
    appendFileSync(this.#journal(this.#number), `${JSON.stringify(event)}\n`, { mode: 0o600 });
  }

  /** Replaces the state, and adds messages. @throws with nothing changed */
  commit(state: State, pieces: readonly UsagePiece[]): void {
    const added: { seq: number; bytes: number }[] = [];
    for (let at = 0; at < pieces.length; at += USAGE_READINGS_MAX) {
      const seq = this.#seq + added.length + 1;
      const text = JSON.stringify(pieces.slice(at, at + USAGE_READINGS_MAX));
      this.#replace(this.#message(seq), text);
      added.push({ seq, bytes: text.length });
    }
    const saved: Saved<State> = { number: this.#number + 1, seq: this.#seq + added.length, state };
    this.#replace(this.#path('state.json'), JSON.stringify(saved));
    const before = this.#journal(this.#number);
    this.#number = saved.number;
    this.#seq = saved.seq;
    this.#waiting.push(...added);
    rmSync(before, { force: true });
    for (const { seq } of added) syncPath(this.#message(seq)).catch(() => undefined);
    this.#bound();
  }

  /** The oldest message that waits. */
  next(): UsageMessageFile | undefined {
    for (;;) {
      const [oldest] = this.#waiting;
      if (oldest === undefined) return undefined;
      const { seq } = oldest;
      try {
        return { seq, pieces: JSON.parse(readFileSync(this.#message(seq), 'utf8')) as UsagePiece[] };
      } catch (error) {
        this.#log.error({ seq, err: error }, 'a record of use cannot be read and is dropped');
        this.stored(seq);
      }
    }
  }

  /** Control has stored this message and those before it. */
  stored(seq: number): void {
    while (this.#waiting[0] !== undefined && this.#waiting[0].seq <= seq) this.#drop();
  }

  /** Drops all messages: control stores none. */
  discard(): void {
    while (this.#waiting.length > 0) this.#drop();
  }

  #drop(): void {
    const oldest = this.#waiting.shift();
    if (oldest !== undefined) rmSync(this.#message(oldest.seq), { force: true });
  }

  #bound(): void {
    let bytes = this.#waiting.reduce((sum, one) => sum + one.bytes, 0);
    let dropped = 0;
    for (; bytes > this.#maxBytes && this.#waiting.length > 1; dropped++) {
      bytes -= this.#waiting[0]?.bytes ?? 0;
      this.#drop();
    }
    if (dropped > 0)
      this.#log.warn({ dropped }, 'control has not stored records of use for long; the oldest are dropped');
  }

  #readState(): Saved<State> {
    const path = this.#path('state.json');
    try {
      return JSON.parse(readFileSync(path, 'utf8')) as Saved<State>;
    } catch (error) {
      const isNew = (error as NodeJS.ErrnoException).code === 'ENOENT';
      if (!isNew)
        this.#log.error({ err: error }, 'the state of the records of use cannot be read; it starts again');
      // Larger than any number that this folder has had, which control may remember.
      const seq = Date.now();
      const saved: Saved<State> = { number: isNew ? 0 : seq, seq };
      // Before the first message: it tells which messages belong to a state.
      this.#replace(path, JSON.stringify(saved));
      return saved;
    }
  }

  /** The last line may be incomplete: its writer was killed. */
  #readJournal(number: number): Event[] {
    let text = '';
    try {
      text = readFileSync(this.#journal(number), 'utf8');
    } catch {
      // Nothing has happened since.
    }
    const events: Event[] = [];
    for (const line of text.split('\n').slice(0, -1)) {
      try {
        events.push(JSON.parse(line) as Event);
      } catch {
        break;
      }
    }
    return events;
  }

  /** Finds the messages that wait, and removes what does not belong to the state. */
  #sweep(): void {
    for (const name of readdirSync(this.#folder)) {
      const seq = /^(\d{1,16})\.message$/.exec(name)?.[1];
      if (seq !== undefined && Number(seq) <= this.#seq) {
        this.#waiting.push({ seq: Number(seq), bytes: statSync(this.#path(name)).size });
      } else if (name !== 'state.json' && this.#path(name) !== this.#journal(this.#number)) {
        rmSync(this.#path(name), { force: true });
      }
    }
    this.#waiting.sort((a, b) => a.seq - b.seq);
  }

  #replace(path: string, text: string): void {
    writeFileSync(`${path}.next`, text, { mode: 0o600 });
    renameSync(`${path}.next`, path);
  }

  #path(name: string): string {
    return join(this.#folder, name);
  }

  #message(seq: number): string {
    return this.#path(`${seq}.message`);
  }

  #journal(number: number): string {
    return this.#path(`${number}.journal`);
  }
}
