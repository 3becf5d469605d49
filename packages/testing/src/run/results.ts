/** The results of a run, and their report. */
import path from 'node:path';
import { styleText } from 'node:util';

const LINES_MAX = 12;
const LINE_MAX = 300;
const SLOWEST_SHOWN = 15;

export interface Failure {
  /** File and line where they are known. */
  where: string;
  name: string;
  error: unknown;
}

export class Results {
  passed = 0;
  failed = 0;
  readonly failures: Failure[] = [];
  /** Milliseconds by file. */
  readonly durations = new Map<string, number>();
  readonly files = new Map<string, { passed: number; failed: number }>();

  add(counts: { passed: number; failed: number }, failures: readonly Failure[] = []): void {
    this.passed += counts.passed;
    this.failed += counts.failed;
    this.failures.push(...failures);
  }

  /** The slowest files. */
  durationReport(): string {
    const sorted = [...this.durations].toSorted(([, a], [, b]) => b - a);
    if (sorted.length < 2) return '';
    const total = sorted.reduce((sum, [, ms]) => sum + ms, 0);
    const lines = sorted.slice(0, SLOWEST_SHOWN).map(([file, ms]) => `${seconds(ms)}  ${file}`);
    return `\nslowest of ${sorted.length} files (${seconds(total).trim()} in all):\n${lines.join('\n')}\n`;
  }

  /** One short paragraph for each test that failed. */
  failureReport(): string {
    return this.failures
      .map(({ where, name, error }) => `\n${styleText('red', 'FAILED')} ${where}${name}\n${reason(error)}\n`)
      .join('');
  }
}

export function seconds(ms: number): string {
  return `${(ms / 1000).toFixed(1).padStart(7)} s`;
}

/** Of a test that failed, as node:test tells it; undefined when it failed only because of a test in it. */
export function failureOf(
  data: { name: string; file?: string | undefined; line?: number | undefined; details: { error: Error } },
  repository: string,
): Failure | undefined {
  const { error } = data.details;
  if ((error as { failureType?: string }).failureType === 'subtestsFailed') return undefined;
  const where = data.file === undefined ? '' : `${path.relative(repository, data.file)}:${data.line} `;
  return { where, name: data.name, error };
}

/** The message of an error and of what caused it, shortened. */
function reason(error: unknown): string {
  const messages: string[] = [];
  for (let one = error; one instanceof Error && messages.length < 4; one = one.cause) {
    // What the runner wraps around the error of a test says nothing of its own.
    const wrapped = (one as NodeJS.ErrnoException).code === 'ERR_TEST_FAILURE' && one.cause instanceof Error;
    if (!wrapped) messages.push(one.message);
  }
  const lines = messages
    .join('\ncaused by: ')
    .split('\n')
    .filter((line) => line.trim() !== '' && line !== '+ actual - expected');
  const shown = lines.length > LINES_MAX ? [...lines.slice(0, LINES_MAX), '…'] : lines;
  return shown.map((line) => `    ${line.slice(0, LINE_MAX)}`).join('\n');
}
