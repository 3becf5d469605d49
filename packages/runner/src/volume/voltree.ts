/** The program that reads and writes the trees of volumes: host/cmd/voltree. It knows neither control nor the network. */
import type { Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { BlobDigest, MergeConflict } from '@releap/contract';
import { Type, type Static, type TSchema } from 'typebox';
import { Compile, type Validator } from 'typebox/compile';
import { run } from '../process/index.ts';
import type { VolumePaths } from './volume-paths.ts';

/** The static binary; set-up builds it. */
export const VOLTREE = fileURLToPath(new URL('../../../../build/host/voltree', import.meta.url));

/**
 * For a tree of millions of files on a slow disk, and its packs on a slow network. A command that was interrupted is
 * repeated, and is cheaper then.
 */
const DEADLINE_MS = 24 * 60 * 60_000;
const OUTPUT_MAX_CHARS = 64 * 1024 * 1024;

const Count = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });
const Blob = Type.Object({ digest: BlobDigest, bytes: Count });

const Conflicts = Type.Array(MergeConflict);
const Scanned = {
  /** Files that cannot be committed (sockets, devices, too deep): at most 100. */
  skipped: Type.Array(Type.Object({ path: Type.String(), reason: Type.String() })),
  skipped_count: Count,
  /** Files that a sandbox has written to after a merge had replaced them: all since the last `accept`. */
  conflicts: Type.Optional(Conflicts),
};

const Same = Type.Object({ root: Type.Literal('same'), ...Scanned });
const Changed = Type.Object({
  root: Blob,
  /** Packs that the base does not name, without the root: files in `outgoing`. */
  new: Type.Array(Blob),
  /** Packs of the base that it no longer names. */
  dropped: Type.Array(BlobDigest),
  /** How many packs it names. */
  packs: Count,
  /** Data of its files, without holes. */
  used_bytes: Count,
  /** Entries that are not folders. */
  files: Count,
  /** How many paths differ from the base. */
  changed: Count,
  ...Scanned,
});
export type TreeCommit = Static<typeof Same> | Static<typeof Changed>;

const OUTPUT = {
  commit: Type.Union([Same, Changed]),
  accept: Type.Object({ root: BlobDigest }),
  checkout: Type.Object({ root: BlobDigest }),
  merge: Type.Object({ applied: Count, conflicts: Conflicts }),
};
type Command = keyof typeof OUTPUT;
const validators = Object.fromEntries(
  Object.entries<TSchema>(OUTPUT).map(([name, schema]) => [name, Compile(schema)]),
) as Record<Command, Validator>;

/** Lines that are no results: what the command waits for. */
const Fetch = Compile(Type.Object({ fetch: Blob }));
const Store = Compile(Type.Object({ store: Blob }));

/** Brings a pack into `incoming`, or stores one that is in `outgoing`. */
export type MovePack = (pack: Static<typeof Blob>, signal: AbortSignal) => Promise<void>;

export class Voltree {
  readonly #program: string;

  /** @param program path of the binary */
  constructor(program: string) {
    this.#program = program;
  }

  /**
   * Packs what differs from the base into `outgoing`, unless nothing does. It is pending until `accept`. When there are
   * many packs the first ones are stored and removed meanwhile, also if nothing differs after all.
   */
  async commit(
    { data, state, outgoing }: VolumePaths,
    store: MovePack,
    signal: AbortSignal,
  ): Promise<TreeCommit> {
    const args = ['--root', data, '--state', state, '--out', outgoing];
    return await this.#command('commit', args, signal, { store });
  }

  /** Makes the pending commit the base, if it is not. Conflicts that were returned are not returned again: they must be kept. */
  async accept({ state }: VolumePaths, root: string, signal: AbortSignal): Promise<void> {
    await this.#command('accept', ['--state', state, root], signal);
  }

  /**
   * Fills a tree that is empty, or was left by a checkout of the same manifest. It is the base then. A few packs are in
   * `incoming` at a time.
   */
  async checkout(
    { data, state, incoming }: VolumePaths,
    manifest: string,
    fetch: MovePack,
    signal: AbortSignal,
  ): Promise<void> {
    const args = ['--root', data, '--state', state, '--manifest', manifest, '--packs', incoming];
    await this.#command('checkout', args, signal, { fetch });
  }

  /**
   * Applies what differs between the base and a manifest, which is the base then. Sandboxes may write meanwhile. It
   * fetches as a checkout does. Conflicts are repeated until `accept`.
   * @param name ends the names of files that were changed on both sides
   */
  async merge(
    { data, state, incoming, limbo }: VolumePaths,
    manifest: string,
    name: string,
    fetch: MovePack,
    signal: AbortSignal,
  ): Promise<{ applied: number; conflicts: MergeConflict[] }> {
    const args = ['--root', data, '--state', state, '--manifest', manifest, '--packs', incoming];
    return await this.#command('merge', [...args, '--limbo', limbo, '--name', name], signal, { fetch });
  }

  async #command<C extends Command>(
    name: C,
    args: readonly string[],
    signal: AbortSignal,
    moves: Moves = {},
  ): Promise<Static<(typeof OUTPUT)[C]>> {
    const packs = new PackRequests(signal);
    let printed = '';
    try {
      await run(this.#program, [name, ...args], {
        deadlineMs: DEADLINE_MS,
        signal: packs.signal,
        feed: (stdin) => packs.answerTo(stdin),
        lineMax: OUTPUT_MAX_CHARS,
        onLine: (line) => {
          const message: unknown = JSON.parse(line);
          if (Fetch.Check(message)) packs.move(message.fetch, moves.fetch);
          else if (Store.Check(message)) packs.move(message.store, moves.store);
          else printed = line;
        },
      });
    } finally {
      await packs.end();
    }
    const value: unknown = JSON.parse(printed);
    if (!validators[name].Check(value))
      throw new Error(`voltree ${name} printed something else: ${printed.slice(0, 200)}`);
    return value as Static<(typeof OUTPUT)[C]>;
  }
}

/** What a command may ask for. */
interface Moves {
  fetch?: MovePack;
  store?: MovePack;
}

/** What one command asks for. */
class PackRequests {
  readonly #failed = new AbortController();
  readonly #ended = new AbortController();
  readonly #running = new Set<Promise<void>>();
  #stdin: Writable | undefined;
  /** Ends the command, also when a pack cannot be downloaded or uploaded. */
  readonly signal: AbortSignal;

  constructor(signal: AbortSignal) {
    this.signal = AbortSignal.any([signal, this.#failed.signal]);
  }

  answerTo(stdin: Writable): void {
    this.#stdin = stdin;
  }

  move(pack: Static<typeof Blob>, how: MovePack | undefined): void {
    if (how === undefined) throw new Error(`a command of voltree asks for what it may not: ${pack.digest}`);
    const moved = how(pack, AbortSignal.any([this.signal, this.#ended.signal])).then(
      () => void this.#stdin?.write(`${pack.digest}\n`),
      (error: unknown) => this.#failed.abort(error),
    );
    this.#running.add(moved);
    void moved.then(() => this.#running.delete(moved));
  }

  /** Aborts transfers in progress. @throws the error of a transfer, if it has ended the command */
  async end(): Promise<void> {
    const { aborted, reason } = this.#failed.signal;
    this.#ended.abort();
    await Promise.all(this.#running);
    if (aborted) throw reason;
  }
}
