import { readFileSync } from 'node:fs';
import { uptime } from 'node:os';

/** A clock tick of /proc is a hundredth of a second, on every architecture (proc(5), USER_HZ). */
const TICK_MICROS = 10_000;

/**
 * Identifies a process uniquely. Pids are reused; a pid with its start time and the boot ID, from whose boot the start time
 * counts, is not.
 */
export interface ProcessIdentity {
  pid: number;
  /** Field 22 of /proc/PID/stat, proc(5): clock ticks between boot and the start of the process. */
  startTicks: string;
  bootId: string;
}

let cachedBootId: string | undefined;

/** The kernel's boot ID: it changes with each boot of the host. */
export function bootId(): string {
  cachedBootId ??= readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  return cachedBootId;
}

/** State letter and start time, or undefined when there is no such process. */
function processStat(pid: number): { state: string; startTicks: string } | undefined {
  let text: string;
  try {
    text = readFileSync(`/proc/${pid}/stat`, 'latin1');
  } catch {
    return undefined;
  }
  // The command name is in parentheses and may itself hold spaces and parentheses.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const [state, startTicks] = [fields[0], fields[19]];
  return state === undefined || startTicks === undefined ? undefined : { state, startTicks };
}

/** Identity of a running process. @throws when there is none with this pid */
export function identifyProcess(pid: number): ProcessIdentity {
  const stat = processStat(pid);
  if (stat === undefined) throw new Error(`no process ${pid}`);
  return { pid, startTicks: stat.startTicks, bootId: bootId() };
}

/** Time since the start of the process by CLOCK_BOOTTIME, which includes time in which the host was suspended. */
export function ageMicros({ startTicks }: ProcessIdentity): number {
  return uptimeMicros() - Number(startTicks) * TICK_MICROS;
}

/** For how long the two clocks are taken to run alike, in nanoseconds: they differ by the time of suspension. */
const OFFSET_VALID_NS = 100_000_000n;
let offset = { readAt: -OFFSET_VALID_NS, micros: 0 };

/** CLOCK_BOOTTIME. `uptime()` reads a file, which is too much for each of hundreds of processes at a time. */
function uptimeMicros(): number {
  const now = process.hrtime.bigint();
  if (now - offset.readAt >= OFFSET_VALID_NS)
    offset = { readAt: now, micros: uptime() * 1_000_000 - Number(now / 1000n) };
  return Number(now / 1000n) + offset.micros;
}

/** Whether exactly this process still runs. A zombie does not. */
export function isAlive(identity: ProcessIdentity): boolean {
  if (identity.bootId !== bootId()) return false;
  const stat = processStat(identity.pid);
  return (
    stat !== undefined && stat.startTicks === identity.startTicks && stat.state !== 'Z' && stat.state !== 'X'
  );
}

/** Signals exactly this process. @returns false when it has ended */
export function signalProcess(identity: ProcessIdentity, signal: NodeJS.Signals): boolean {
  if (!isAlive(identity)) return false;
  try {
    process.kill(identity.pid, signal);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
    throw error;
  }
}

/**
 * Kills exactly this process and waits until it has ended. @throws when it still runs after pauses of `deadlineMs` together: after a
 * time in which the machine stalled it has not ended either
 */
export async function killProcess(identity: ProcessIdentity, deadlineMs: number): Promise<void> {
  signalProcess(identity, 'SIGKILL');
  for (let wait = 1, waitedMs = 0; isAlive(identity); waitedMs += wait, wait = Math.min(wait * 2, 50)) {
    if (waitedMs >= deadlineMs) {
      throw new Error(
        `process ${identity.pid} still runs ${deadlineMs} ms after SIGKILL (stuck in the kernel?)`,
      );
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}
