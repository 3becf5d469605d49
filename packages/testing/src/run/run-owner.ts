/** Names the process that a run of tests belongs to, so that a later run can tell whether it is still there. */
import { readFileSync } from 'node:fs';

/** `PID-START`: a pid alone is reused. START is field 22 of /proc/PID/stat, clock ticks since boot (proc(5)). */
export function ownerOf(pid: number): string | undefined {
  let text: string;
  try {
    text = readFileSync(`/proc/${pid}/stat`, 'latin1');
  } catch {
    return undefined;
  }
  // The command name is in parentheses and may itself hold spaces and parentheses.
  const [state, ...fields] = text.slice(text.lastIndexOf(')') + 2).split(' ');
  return state === 'Z' || state === 'X' ? undefined : `${pid}-${fields[18]}`;
}

/** This process. */
export function ownOwner(): string {
  const owner = ownerOf(process.pid);
  if (owner === undefined) throw new Error('/proc does not show this process');
  return owner;
}

/** Whether the process that `ownerOf` named still runs. */
export function ownerLives(owner: string): boolean {
  return ownerOf(Number.parseInt(owner, 10)) === owner;
}
