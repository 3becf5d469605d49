/** What the suites need of the processes of this machine. Linux's /proc (proc(5)). */
import type { ChildProcess } from 'node:child_process';
import { readdir, readFile, readlink, stat } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';

const GRACE_MS = 10_000;
/** USER_HZ, fixed in the kernel's interface. */
const TICKS_PER_SECOND = 100;

/** Waits until a child that was told to end has done so; one that does not is killed. */
export async function endOf(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  const timer = setTimeout(() => child.kill('SIGKILL'), GRACE_MS);
  await ended;
  clearTimeout(timer);
}

export interface Process {
  pid: number;
  parent: number;
  command: string[];
}

/** A process as it is now; undefined when there is none of that number. */
export async function identify(pid: number): Promise<Process | undefined> {
  try {
    const [status, command] = await Promise.all([
      readFile(`/proc/${pid}/stat`, 'utf8'),
      readFile(`/proc/${pid}/cmdline`, 'utf8'),
    ]);
    const parent = Number(status.slice(status.lastIndexOf(')') + 2).split(' ')[1]);
    return { pid, parent, command: command.split('\0').slice(0, -1) };
  } catch {
    return undefined;
  }
}

/** A process and all that descend from it. */
export async function family(root: number): Promise<Process[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name)).map(Number);
  const all = (await Promise.all(pids.map(identify))).filter((process) => process !== undefined);
  const members = new Set([root]);
  // A parent's number may be larger than its child's: repeat until nothing is added.
  for (let before = 0; before !== members.size; ) {
    before = members.size;
    for (const { pid, parent } of all) if (members.has(parent)) members.add(pid);
  }
  return all.filter(({ pid }) => members.has(pid));
}

/** MiB that a process has in memory, and its share of them (what several have in common, divided among them). */
export interface Memory {
  rss: number;
  pss: number;
  /** Part of `pss` that is memory of its own. */
  anonymous: number;
  /** Part of `pss` that is shared memory, such as a template's. */
  shared: number;
}

export async function memoryOf(pid: number): Promise<Memory> {
  const text = await readFile(`/proc/${pid}/smaps_rollup`, 'utf8');
  const value = (name: string): number =>
    Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(text)?.[1] ?? 0) / 1024;
  return {
    rss: value('Rss'),
    pss: value('Pss'),
    anonymous: value('Pss_Anon'),
    shared: value('Pss_Shmem'),
  };
}

/** MiB of sealed memory that a runner holds as the initial memory of guests, whichever process maps it. */
export async function sealedMib(pid: number): Promise<number> {
  const folder = `/proc/${pid}/fd`;
  const sizes = new Map<number, number>();
  for (const name of await readdir(folder)) {
    const target = await readlink(`${folder}/${name}`).catch(() => '');
    if (!target.startsWith('/memfd:releap-memory')) continue;
    const { ino, blocks } = await stat(`${folder}/${name}`);
    sizes.set(ino, (blocks * 512) / 2 ** 20);
  }
  return [...sizes.values()].reduce((total, size) => total + size, 0);
}

/** Seconds of processor time that these have used; those that are gone count nothing. */
export async function cpuSeconds(pids: number[]): Promise<number> {
  return await secondsOf(pids, (fields) => Number(fields[11]) + Number(fields[12]));
}

/** The same of a process and all that descend from it, also of those that have ended. */
export async function familyCpuSeconds(root: number): Promise<number> {
  const pids = (await family(root)).map(({ pid }) => pid);
  return await secondsOf(pids, (fields) => [11, 12, 13, 14].reduce((sum, n) => sum + Number(fields[n]), 0));
}

async function secondsOf(pids: number[], ticks: (fields: string[]) => number): Promise<number> {
  const times = await Promise.all(
    pids.map(async (pid) => {
      const status = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '');
      const fields = status.slice(status.lastIndexOf(')') + 2).split(' ');
      return status === '' ? 0 : ticks(fields) / TICKS_PER_SECOND;
    }),
  );
  return times.reduce((sum, time) => sum + time, 0);
}

/** Waits until `condition` holds. @throws when it does not within `deadlineMs`, naming `what` */
export async function until(
  what: string,
  condition: () => Promise<boolean>,
  deadlineMs = 60_000,
): Promise<void> {
  for (const end = Date.now() + deadlineMs; !(await condition()); await sleep(50)) {
    if (Date.now() > end) throw new Error(`${what}: not within ${deadlineMs} ms`);
  }
}
