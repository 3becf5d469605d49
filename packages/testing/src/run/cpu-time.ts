/**
 * Processor time of a run by test file and by kind of process: what `npm test -- --cpu` reports. It is what a run costs on
 * any machine; the time on the clock depends on what else the machine does.
 *
 * Sampled from /proc. A process belongs to the file that its parent belongs to. What ends between two samples is in the
 * times that its parent has waited for (cutime and cstime in proc(5)).
 */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';

/** To read all of /proc takes the processor some milliseconds itself: four times a second, 85 s of a whole run. */
const INTERVAL_MS = 500;
/** Clock ticks a second in /proc; Linux has no other value on x86-64 and arm64. */
const TICKS = 100;
/** A process is what it was started as only after its execve(2). */
const SETTLED_SAMPLES = 4;
const FILES_SHOWN = 40;
const KINDS_SHOWN = 25;
const KINDS_OF_FILE = 4;
const RUNNER = 'test runner';
const SHORT_LIVED = 'short-lived children';

interface Stat {
  pid: number;
  comm: string;
  parent: number;
  /** Ticks of itself, and of the children that it has waited for. */
  own: number;
  waited: number;
  start: number;
}

interface Sampled extends Stat {
  owner: string;
  kind: string;
  samples: number;
  /** Ticks of ended children that are counted already and not in `waited` yet. */
  counted: number;
}

/** Ticks by kind by owner. */
type Table = Map<string, Map<string, number>>;

export class CpuTime {
  readonly #files: readonly string[];
  readonly #ticks: Table = new Map();
  readonly #timer: NodeJS.Timeout;
  #known = new Map<number, Sampled>();

  /** @param files of the run: a child of this process that names one of them on its command line belongs to it */
  constructor(files: readonly string[]) {
    this.#files = files;
    const setUp = readStat(process.ppid);
    // Not a shell, which has waited for much else.
    if (setUp !== undefined && commandOf(process.ppid).includes('setup/test.mjs'))
      this.#add('set-up', 'set-up', setUp.own + setUp.waited);
    this.#sample();
    this.#timer = setInterval(() => this.#sample(), INTERVAL_MS).unref();
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#sample();
  }

  #add(owner: string, kind: string, ticks: number): void {
    if (ticks <= 0) return;
    const kinds = this.#ticks.get(owner) ?? new Map<string, number>();
    this.#ticks.set(owner, kinds);
    kinds.set(kind, (kinds.get(kind) ?? 0) + ticks);
  }

  #sample(): void {
    const before = this.#known;
    const known = (this.#known = new Map<number, Sampled>());
    const stats = readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .flatMap((name) => readStat(Number(name)) ?? []);
    // Parents first.
    stats.sort((a, b) => a.start - b.start || a.pid - b.pid);
    for (const stat of stats) {
      const old = sameIn(before, stat);
      const sampled = old === undefined ? this.#begin(stat) : { ...old, ...stat };
      if (sampled === undefined) continue;
      sampled.samples += 1;
      if (sampled.samples <= SETTLED_SAMPLES || sampled.comm !== old?.comm)
        sampled.kind = stat.pid === process.pid ? RUNNER : kindOf(stat);
      known.set(stat.pid, sampled);
      this.#add(sampled.owner, sampled.kind, stat.own - (old?.own ?? 0));
    }
    const ended = [...before.values()].filter((one) => sameIn(known, one) === undefined);
    for (const [pid, one] of known) {
      const children = ended.filter(({ parent }) => parent === pid);
      one.counted += children.reduce((sum, child) => sum + seenOf(child, ended), 0);
      const unseen = one.waited - (sameIn(before, one)?.waited ?? 0) - one.counted;
      one.counted = Math.max(0, -unseen);
      const [child] = children;
      if (child === undefined) this.#add(one.owner, `${SHORT_LIVED} of ${one.kind}`, unseen);
      else this.#add(child.owner, child.kind, unseen);
    }
  }

  /** Of a process that is seen for the first time; undefined when it does not belong to the run. */
  #begin(stat: Stat): Sampled | undefined {
    const sampled = { ...stat, kind: '', samples: 0, counted: 0 };
    if (stat.pid === process.pid) {
      // What it has used before is not the tests'.
      sampled.counted = stat.waited;
      return { ...sampled, owner: RUNNER };
    }
    const parent = this.#known.get(stat.parent);
    if (parent === undefined) return undefined;
    if (parent.pid !== process.pid) return { ...sampled, owner: parent.owner };
    const command = commandOf(stat.pid);
    return { ...sampled, owner: this.#files.find((file) => command.includes(file)) ?? ownToolOf(command) };
  }

  /** Writes all of it to build/test-cpu.json. @returns the most expensive files and kinds */
  report(repository: string): string {
    const files = [...this.#ticks].map(([owner, kinds]) => ({ name: owner, ...totalOf(kinds) }));
    const byKind = new Map<string, number>();
    for (const kinds of this.#ticks.values())
      for (const [kind, ticks] of kinds) byKind.set(kind, (byKind.get(kind) ?? 0) + ticks);
    const all = totalOf(byKind);
    files.sort((a, b) => b.ticks - a.ticks);
    mkdirSync(path.join(repository, 'build'), { recursive: true });
    writeFileSync(
      path.join(repository, 'build/test-cpu.json'),
      `${JSON.stringify(Object.fromEntries(files.map(({ name, kinds }) => [name, inSeconds(kinds)])), undefined, 1)}\n`,
    );
    const shownFiles = files.slice(0, FILES_SHOWN).map(({ name, ticks, kinds }) => {
      const parts = kinds.slice(0, KINDS_OF_FILE).map(([kind, of]) => `${kind} ${(of / TICKS).toFixed(1)}`);
      return `${line(ticks)}  ${name} (${parts.join(', ')})`;
    });
    const shownKinds = all.kinds.slice(0, KINDS_SHOWN).map(([kind, ticks]) => `${line(ticks)}  ${kind}`);
    return `\nprocessor time: ${(all.ticks / TICKS / 60).toFixed(1)} minutes; by file\n${shownFiles.join('\n')}\nby kind of process\n${shownKinds.join('\n')}\n`;
  }
}

/** Ticks that are counted of an ended process, and of those that ended with it: its parent has waited for all of them. */
function seenOf(one: Sampled, ended: readonly Sampled[]): number {
  const children = ended.filter(({ parent }) => parent === one.pid);
  const own = one.own + one.waited + one.counted;
  return children.reduce((sum, child) => sum + seenOf(child, ended), own);
}

/** A pid alone is reused. */
function sameIn(known: ReadonlyMap<number, Sampled>, { pid, start }: Stat): Sampled | undefined {
  const found = known.get(pid);
  return found?.start === start ? found : undefined;
}

function totalOf(kinds: ReadonlyMap<string, number>): { ticks: number; kinds: [string, number][] } {
  return {
    ticks: [...kinds.values()].reduce((sum, one) => sum + one, 0),
    kinds: [...kinds].toSorted(([, a], [, b]) => b - a),
  };
}

function inSeconds(kinds: readonly [string, number][]): Record<string, number> {
  return Object.fromEntries(kinds.map(([kind, ticks]) => [kind, ticks / TICKS]));
}

function line(ticks: number): string {
  return `${(ticks / TICKS).toFixed(1).padStart(7)} s`;
}

/** Undefined when it has ended. */
function readStat(pid: number): Stat | undefined {
  const text = read(pid, 'stat');
  if (text === '') return undefined;
  // The command name is in parentheses and may itself hold spaces and parentheses.
  const end = text.lastIndexOf(')');
  const fields = text
    .slice(end + 2)
    .split(' ')
    .map(Number);
  const [parent = 0] = fields.slice(1);
  const [user = 0, system = 0, waitedUser = 0, waitedSystem = 0] = fields.slice(11);
  return {
    pid,
    comm: text.slice(text.indexOf('(') + 1, end),
    parent,
    own: user + system,
    waited: waitedUser + waitedSystem,
    start: fields[19] ?? 0,
  };
}

function read(pid: number, file: string): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'latin1');
  } catch {
    return '';
  }
}

function commandOf(pid: number): string {
  return read(pid, 'cmdline').replaceAll('\0', ' ').trim();
}

/** What the run itself starts, beside test files. */
function ownToolOf(command: string): string {
  if (/\/main\.(?:ts|mjs) all/.test(command)) return 'shared service';
  return /\b(go|tsc|oxlint|biome|postgres)\b/.exec(command)?.[0] ?? RUNNER;
}

function kindOf({ pid, comm }: Stat): string {
  const command = commandOf(pid);
  if (command.includes('/qemu-system-'))
    return command.includes(' -incoming ') ? 'VMM (restored)' : 'VMM (booted)';
  if (command.startsWith('postgres') || comm === 'postgres') return 'postgres';
  const role = /\/main\.(?:ts|mjs) (all|control|runner|gateway)\b/.exec(command)?.[1];
  if (role !== undefined) return `releap ${role}`;
  // Before the modules that a test preloads.
  if (/\.test\.(?:ts|mjs)\b/.test(command)) return 'test';
  const script = /\/([^/ ]+\.m?[jt]s)\b/.exec(command.includes('node') ? command : '')?.[1];
  return script === undefined ? comm : `node ${script}`;
}
