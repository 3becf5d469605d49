/** Counts what clients do, by address. */
import { isIPv6 } from 'node:net';

const WINDOW_MS = 60_000;
/** Subjects that are remembered; beyond, the least recently counted ones start over. */
export const SUBJECTS_MAX = 20_000;

/** Counts events of a subject in windows of one minute, in bounded memory. */
export class EventCounter {
  readonly #max: number;
  readonly #counts = new Map<string, { count: number; until: number }>();

  constructor(max: number) {
    this.#max = max;
  }

  isExceeded(subject: string): boolean {
    const entry = this.#counts.get(subject);
    return entry !== undefined && entry.until > performance.now() && entry.count >= this.#max;
  }

  add(subject: string): void {
    const now = performance.now();
    const before = this.#counts.get(subject);
    this.#counts.delete(subject);
    const entry = before === undefined || before.until <= now ? { count: 0, until: now + WINDOW_MS } : before;
    entry.count++;
    this.#counts.set(subject, entry);
    for (const oldest of this.#counts.keys()) {
      if (this.#counts.size <= SUBJECTS_MAX) break;
      this.#counts.delete(oldest);
    }
  }
}

/** The address; IPv6 by its /64, as one client has all of it. */
export function subjectOf(address: string): string {
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1];
  if (mapped !== undefined) return mapped;
  if (!isIPv6(address)) return address;
  // `::` stands for as many groups as are missing.
  const [head = '', tail] = (address.split('%', 1)[0] ?? '').split('::', 2);
  const left = head === '' ? [] : head.split(':');
  const right = tail === undefined || tail === '' ? [] : tail.split(':');
  const groups = [...left, ...Array<string>(Math.max(0, 8 - left.length - right.length)).fill('0'), ...right];
  return `${groups
    .slice(0, 4)
    .map((group) => Number.parseInt(group, 16).toString(16))
    .join(':')}::/64`;
}
