/** The program that reads and writes the trees of volumes: host/cmd/voltree. It knows neither control nor the network. */
import { cpus, totalmem } from 'node:os';
import { basename, dirname } from 'node:path';
import type { Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { BlobDigest, MergeConflict } from '@releap/contract';
import { Type, type Static, type TSchema } from 'typebox';
import { Compile, type Validator } from 'typebox/compile';
import type { TreeLimits } from '../cgroup/cgroup-files.ts';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import { ProcessError, run, toolEnvironment } from '../process/index.ts';
import type { VolumePaths } from './volume-paths.ts';

/** The static binary; set-up builds it. */
export const VOLTREE = fileURLToPath(new URL('../../../../build/host/voltree', import.meta.url));

/**
 * For a tree of millions of files on a slow disk, and its packs on a slow network. A command that was interrupted is
 * repeated, and is cheaper then.
 */
const DEADLINE_MS = 24 * 60 * 60_000;
const OUTPUT_MAX_CHARS = 64 * 1024 * 1024;
/**
 * Of one command, with the files that the kernel caches for it: trees are the tenants', and one may be made to need much. Its heap is
 * collected before it is that large.
 */
const MEMORY_MAX_MIB = 1024;
const HEAP_MIB = 768;
/** Threads. Go makes one for each system call that blocks. */
const THREADS_MAX = 256;
/** Part of the machine's memory that the commands of all volumes together may have, but at least what one may. */
const MEMORY_SHARE = 1 / 8;
/** What they get of a busy machine. A commit may be late; sandboxes do not wait for one. */
const CORES = 1 / 4;
/** And of a busy disk, where that is shared by weight. */
const IO_WEIGHT = 10;

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

/** Of the control groups of all commands together. */
export function voltreeLimits(): TreeLimits {
  const share = Math.floor((totalmem() / 2 ** 20) * MEMORY_SHARE);
  return { cores: CORES, memoryMib: Math.max(MEMORY_MAX_MIB, share), ioWeight: IO_WEIGHT };
}

type Groups = Pick<CgroupTree, 'create' | 'destroy'>;

export class Voltree {
  readonly #program: () => Promise<string>;
  readonly #groups: Groups;
  #commands = 0;

  /** @param program resolves with the path of the binary. @param groups where each command gets a control group, of these commands alone */
  constructor(program: () => Promise<string>, groups: Groups) {
    this.#program = program;
    this.#groups = groups;
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
    { data, state, incoming, displaced }: VolumePaths,
    manifest: string,
    name: string,
    fetch: MovePack,
    signal: AbortSignal,
  ): Promise<{ applied: number; conflicts: MergeConflict[] }> {
    const args = ['--root', data, '--state', state, '--manifest', manifest, '--packs', incoming];
    return await this.#command('merge', [...args, '--displaced', displaced, '--name', name], signal, {
      fetch,
    });
  }

  async #command<C extends Command>(
    name: C,
    args: readonly string[],
    signal: AbortSignal,
    moves: Moves = {},
  ): Promise<Static<(typeof OUTPUT)[C]>> {
    const packs = new PackRequests(signal);
    let printed = '';
    const group = this.#groupOf(args);
    try {
      const joined = await this.#groups.create(group, {
        cpu: 1,
        cpuMax: cpus().length,
        memoryMib: MEMORY_MAX_MIB,
        pids: THREADS_MAX,
      });
      const options = joined.flatMap((procs) => ['--cgroup', procs]);
      await run(await this.#program(), [...options, name, ...args], {
        deadlineMs: DEADLINE_MS,
        env: { ...toolEnvironment(), GOMEMLIMIT: `${HEAP_MIB}MiB` },
        signal: packs.signal,
        feed: (stdin) => packs.answerTo(stdin),
        lineMax: OUTPUT_MAX_CHARS,
        onLine: (line) => {
          const message: unknown = JSON.parse(line);
          if (Fetch.Check(message)) packs.move(message.fetch, moves.fetch);
          else if (Store.Check(message)) packs.move(message.store, moves.store);
          else printed = line;
        },
      }).catch((error: unknown) => {
        if (!(error instanceof ProcessError) || error.failure !== 'killed') throw error;
        throw new Error(`voltree ${name} was killed: it may use ${MEMORY_MAX_MIB} MiB of memory`, {
          cause: error,
        });
      });
    } finally {
      try {
        await packs.end();
      } finally {
        // One that cannot be removed now is removed by the next runner.
        await this.#groups.destroy(group).catch(() => undefined);
      }
    }
    const value: unknown = JSON.parse(printed);
    if (!validators[name].Check(value))
      throw new Error(`voltree ${name} printed something else: ${printed.slice(0, 200)}`);
    return value as Static<(typeof OUTPUT)[C]>;
  }

  /** Name of the control group of a command: of its volume, and a number, so that no two commands share one. */
  #groupOf(args: readonly string[]): string {
    const state = args[args.indexOf('--state') + 1] ?? '';
    this.#commands += 1;
    return `${basename(dirname(state))}.${this.#commands}`;
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
