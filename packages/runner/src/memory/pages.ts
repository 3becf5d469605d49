/** Synchronous operations on a guest's pages, for a worker thread (`page-worker.ts`). */
import { closeSync, fstatSync, openSync, readSync, writeSync } from 'node:fs';
import type { GuestMemory } from './guest-memory.ts';

const PAGE_BYTES = 4096;
const CHUNK_BYTES = 1024 * 1024;
/** Entries of /proc/PID/pagemap read at once: for 256 MiB of memory. */
const SCAN_PAGES = 65_536;
const SAMPLED_EVERY = 64;
/** Bits of the upper half of a pagemap entry (Documentation/admin-guide/mm/pagemap.rst). */
const PRESENT = 1 << 31;
const SWAPPED = 1 << 30;
const OF_A_FILE = 1 << 29;
const MAPPED_ONCE = 1 << 24;
/** Precedes each run of pages in a delta: its offset in the guest's memory and its length in bytes, as 64-bit little-endian integers. */
const HEAD_BYTES = 16;

/**
 * `written`: pages that the guest has written since its VMM was started, which are no longer those of the mapped file.
 * `unshared`: those of them that no clone of the process shares, which are the pages written since the clone was made.
 */
export type Pages = 'written' | 'unshared';

/** A page-aligned range of a guest's memory. */
export interface Range {
  from: number;
  length: number;
}

/**
 * Copies pages to a file, at their offsets in the guest's memory.
 * @param range in bytes; all of the guest's memory by default
 * @returns bytes that were copied
 */
export function copyPages(
  { pid, address, bytes }: GuestMemory,
  pages: Pages,
  target: number,
  { from, length }: Range = { from: 0, length: bytes },
): number {
  let total = 0;
  for (const { chunk, offset } of chunks({ pid, address: address + from, bytes: length }, pages)) {
    writeAll(target, chunk, from + offset);
    total += chunk.length;
  }
  return total;
}

/**
 * Writes the differences between a guest's memory and the file `base`, an earlier copy of the same guest's memory: only
 * pages that the guest has written since its VMM was started can differ.
 * @param most ends with undefined when more bytes differ
 * @returns bytes that differ
 */
export function writeDelta(
  memory: GuestMemory,
  base: number,
  target: number,
  most: number,
): number | undefined {
  const known = Buffer.allocUnsafeSlow(CHUNK_BYTES);
  const head = Buffer.alloc(HEAD_BYTES);
  let differing = 0;
  let end = 0;
  for (const { chunk, offset } of chunks(memory, 'written')) {
    const before = known.subarray(0, chunk.length);
    readAll(base, before, offset);
    for (const run of differingRuns(chunk, before)) {
      differing += run.end - run.start;
      if (differing > most) return undefined;
      head.writeBigUInt64LE(BigInt(offset + run.start), 0);
      head.writeBigUInt64LE(BigInt(run.end - run.start), 8);
      writeAll(target, head, end);
      writeAll(target, chunk.subarray(run.start, run.end), end + HEAD_BYTES);
      end += HEAD_BYTES + run.end - run.start;
    }
  }
  return differing;
}

/**
 * Estimates the size of a delta from a sample of one page in 64. The guest may run.
 * @throws when the memory or the file cannot be read
 */
export function estimateDelta(memory: GuestMemory, base: number): number {
  const content = openSync(`/proc/${memory.pid}/mem`, 'r');
  try {
    const [page, known] = [Buffer.alloc(PAGE_BYTES), Buffer.alloc(PAGE_BYTES)];
    let [differing, passed] = [0, 0];
    for (const { offset, length } of runs(memory, 'written')) {
      for (let at = 0; at < length; at += PAGE_BYTES) {
        passed += 1;
        if (passed % SAMPLED_EVERY !== 0) continue;
        readAll(content, page, memory.address + offset + at);
        readAll(base, known, offset + at);
        if (!page.equals(known)) differing += SAMPLED_EVERY * PAGE_BYTES;
      }
    }
    return differing;
  } finally {
    closeSync(content);
  }
}

/**
 * Writes the pages of a delta into the memory of a VMM whose guest has not run yet. The VMM maps the base privately, so
 * the base does not change.
 * @throws when the delta is truncated, or does not belong to a guest of that size
 */
export function applyDelta(delta: number, memory: GuestMemory): void {
  const content = openSync(`/proc/${memory.pid}/mem`, 'r+');
  try {
    const { size } = fstatSync(delta);
    const head = Buffer.alloc(HEAD_BYTES);
    const part = Buffer.allocUnsafeSlow(CHUNK_BYTES);
    for (let at = 0; at < size; ) {
      readAll(delta, head, at);
      const offset = Number(head.readBigUInt64LE(0));
      const length = Number(head.readBigUInt64LE(8));
      if (length > CHUNK_BYTES || offset + length > memory.bytes) {
        throw new Error(`the delta does not fit a guest of ${memory.bytes} bytes`);
      }
      const bytes = part.subarray(0, length);
      readAll(delta, bytes, at + HEAD_BYTES);
      writeAll(content, bytes, memory.address + offset);
      at += HEAD_BYTES + length;
    }
  } finally {
    closeSync(content);
  }
}

/** Runs of matching pages, in chunks of at most a megabyte. The buffer is valid until the next chunk. */
function* chunks(memory: GuestMemory, pages: Pages): Generator<{ chunk: Buffer; offset: number }> {
  const content = openSync(`/proc/${memory.pid}/mem`, 'r');
  try {
    const buffer = Buffer.allocUnsafeSlow(CHUNK_BYTES);
    for (const { offset, length } of runs(memory, pages)) {
      const chunk = buffer.subarray(0, length);
      readAll(content, chunk, memory.address + offset);
      yield { chunk, offset };
    }
  } finally {
    closeSync(content);
  }
}

function* runs(
  { pid, address, bytes }: GuestMemory,
  pages: Pages,
): Generator<{ offset: number; length: number }> {
  const pagemap = openSync(`/proc/${pid}/pagemap`, 'r');
  try {
    const count = bytes / PAGE_BYTES;
    // The kernel writes entries in host byte order, which is little endian on all supported machines.
    const entries = new Uint32Array(2 * Math.min(SCAN_PAGES, count));
    let start = -1;
    for (let first = 0; first < count; first += SCAN_PAGES) {
      const scanned = Math.min(SCAN_PAGES, count - first);
      readAll(pagemap, Buffer.from(entries.buffer, 0, scanned * 8), (address / PAGE_BYTES + first) * 8);
      for (let page = 0; page <= scanned; page++) {
        const counts = page < scanned && isOne(entries[2 * page + 1] as number, pages);
        const at = (first + page) * PAGE_BYTES;
        if (counts && start < 0) start = at;
        else if (start >= 0 && (!counts || at - start === CHUNK_BYTES)) {
          yield { offset: start, length: at - start };
          start = counts ? at : -1;
        }
      }
    }
  } finally {
    closeSync(pagemap);
  }
}

function isOne(entry: number, pages: Pages): boolean {
  if ((entry & SWAPPED) !== 0) return true;
  if ((entry & PRESENT) === 0 || (entry & OF_A_FILE) !== 0) return false;
  return pages === 'written' || (entry & MAPPED_ONCE) !== 0;
}

function* differingRuns(chunk: Buffer, known: Buffer): Generator<{ start: number; end: number }> {
  if (chunk.equals(known)) return;
  let start = -1;
  for (let page = 0; page < chunk.length; page += PAGE_BYTES) {
    const same = chunk.compare(known, page, page + PAGE_BYTES, page, page + PAGE_BYTES) === 0;
    if (!same && start < 0) start = page;
    if (same && start >= 0) {
      yield { start, end: page };
      start = -1;
    }
  }
  if (start >= 0) yield { start, end: chunk.length };
}

/** @throws when the file ends before the buffer is full */
function readAll(fd: number, buffer: Buffer, position: number): void {
  for (let done = 0; done < buffer.length; ) {
    const count = readSync(fd, buffer, done, buffer.length - done, position + done);
    if (count === 0) throw new Error(`it ended at byte ${position + done}`);
    done += count;
  }
}

function writeAll(fd: number, buffer: Buffer, position: number): void {
  for (let done = 0; done < buffer.length; ) {
    done += writeSync(fd, buffer, done, buffer.length - done, position + done);
  }
}
