/** Reads values out of what a guest says. Each throws a GuestError `protocol` naming the member that is wrong. */
import { GuestError } from './guest-error.ts';

/** Of measurements in one answer. */
const COUNTS_MAX = 64;

type Bag = Record<string, unknown>;

function wrong(name: string, want: string): GuestError {
  return new GuestError('protocol', `the guest's answer is malformed: ${name} is not ${want}`);
}

export function readInt(bag: Bag, name: string, fallback?: number): number {
  const value = bag[name];
  if (value === undefined && fallback !== undefined) return fallback;
  if (typeof value !== 'number' || !Number.isSafeInteger(value)) throw wrong(name, 'an integer');
  return value;
}

export function readText(bag: Bag, name: string, maxLength = 8_192, fallback?: string): string {
  const value = bag[name];
  if (value === undefined && fallback !== undefined) return fallback;
  if (typeof value !== 'string' || value.length > maxLength)
    throw wrong(name, `a string of at most ${maxLength} characters`);
  return value;
}

export function readFlag(bag: Bag, name: string): boolean {
  const value = bag[name];
  if (value !== undefined && typeof value !== 'boolean') throw wrong(name, 'true or false');
  return value === true;
}

export function readBag(bag: Bag, name: string): Bag {
  const value = bag[name];
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw wrong(name, 'an object');
  return value as Bag;
}

/** The members that are integers: measurements by name, none of which anything depends on. */
export function readCounts(bag: Bag, name: string): Record<string, number> {
  if (bag[name] === undefined) return {};
  const counts = Object.entries(readBag(bag, name)).slice(0, COUNTS_MAX);
  return Object.fromEntries(
    counts.filter((entry): entry is [string, number] => Number.isSafeInteger(entry[1])),
  );
}

/** Unix time in nanoseconds, in decimal digits: it does not fit a number. */
export function readClock(bag: Bag, name: string): bigint {
  const text = readText(bag, name, 20);
  if (!/^[0-9]{1,19}$/.test(text)) throw wrong(name, 'a time in nanoseconds');
  return BigInt(text);
}

/** Missing is none. */
export function readTexts(bag: Bag, name: string): string[] {
  const value = bag[name] ?? [];
  if (!Array.isArray(value)) throw wrong(name, 'an array');
  return value.map((text: unknown, index) => readText({ [index]: text }, String(index)));
}

export interface EntrypointState {
  /** `none`: not asked for; `failed`: could not be started. */
  state: 'none' | 'running' | 'exited' | 'failed';
  pid?: number;
  /** With `exited` and `failed`; 128 + signal when a signal ended it. */
  exitCode?: number;
  /** Such as `SIGTERM`. */
  signal?: string;
  /** Why it could not be started. */
  reason?: string;
}

export function readEntrypoint(bag: Bag): EntrypointState {
  const state = bag['state'];
  if (state !== 'none' && state !== 'running' && state !== 'exited' && state !== 'failed') {
    throw wrong('entrypoint.state', 'a known state');
  }
  return {
    state,
    ...(bag['pid'] === undefined ? {} : { pid: readInt(bag, 'pid') }),
    ...(bag['exit_code'] === undefined ? {} : { exitCode: readInt(bag, 'exit_code') }),
    ...(bag['signal'] === undefined ? {} : { signal: readText(bag, 'signal', 32) }),
    ...(bag['reason'] === undefined ? {} : { reason: readText(bag, 'reason') }),
  };
}

/** What the agent says of itself at the start of a connection. */
export interface GuestHello {
  agent: string;
  /** The kernel's boot id; equal in all that was restored from one template. */
  bootId: string;
  configured: boolean;
  frozen: boolean;
  entrypoint: EntrypointState;
}

export function readHello(bag: Bag): GuestHello {
  return {
    agent: readText(bag, 'agent', 64),
    bootId: readText(bag, 'boot_id', 64),
    configured: readFlag(bag, 'configured'),
    frozen: readFlag(bag, 'frozen'),
    entrypoint: readEntrypoint(readBag(bag, 'entrypoint')),
  };
}

export interface FileEntry {
  name: string;
  type: 'file' | 'directory' | 'symlink' | 'fifo' | 'socket' | 'device' | 'other';
  size: number;
  /** Octal permissions, such as `644`. */
  mode: string;
  mtimeMs: number;
  uid: number;
  gid: number;
  /** Target of a symbolic link. */
  link?: string;
}

const ENTRY_TYPES = ['file', 'directory', 'symlink', 'fifo', 'socket', 'device'] as const;

export function readEntry(bag: Bag): FileEntry {
  return {
    name: readText(bag, 'name'),
    type: ENTRY_TYPES.find((type) => type === bag['type']) ?? 'other',
    size: readInt(bag, 'size'),
    mode: readText(bag, 'mode', 8),
    mtimeMs: readInt(bag, 'mtime_ms'),
    uid: readInt(bag, 'uid'),
    gid: readInt(bag, 'gid'),
    ...(bag['link'] === undefined ? {} : { link: readText(bag, 'link') }),
  };
}

export function readEntries(bag: Bag): { entries: FileEntry[]; truncated: boolean } {
  const entries = bag['entries'];
  if (!Array.isArray(entries)) throw wrong('entries', 'an array');
  return {
    entries: entries.map((entry: unknown, index) => readEntry(readBag({ [index]: entry }, String(index)))),
    truncated: readFlag(bag, 'truncated'),
  };
}
