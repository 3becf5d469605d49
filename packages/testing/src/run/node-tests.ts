/** Runs test files with node:test, each in a process of its own, and counts results by its events. */
import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';
import { isNightly } from '../repetitions.ts';
import type { TestFile } from './files.ts';
import { failureOf, seconds, type Failure, type Results } from './results.ts';

/** From being asked to end to being killed. */
const GRACE_MS = 2_000;
const FIXED_SEED = new URL('../fixed-seed.ts', import.meta.url).href;

export interface FileResult {
  passed: number;
  failed: number;
  failures: Failure[];
  ms: number;
  /** The report of the file, as the spec reporter writes it. */
  output: string;
}

interface Event {
  type: string;
  // oxlint-disable-next-line typescript/no-explicit-any -- each type of event has its own data; fields are checked where used
  data: any;
}

/**
 * Runs one file. Never rejects: a file that cannot be run has failed.
 * @param show gets the report while the file runs; by default it is in the result
 */
export async function runFile(
  file: string,
  repository: string,
  timeoutMs: number,
  show?: (text: string) => void,
): Promise<FileResult> {
  const started = performance.now();
  // node:test sends a signal to a file that takes too long; one that waits for its own end does not react to it.
  const hard = setTimeout(() => void killTestProcess(file), timeoutMs + GRACE_MS);
  const result: FileResult = { passed: 0, failed: 0, failures: [], ms: 0, output: '' };
  const report = new spec();
  const reported = (async () => {
    for await (const text of report) {
      if (show === undefined) result.output += String(text);
      else show(String(text));
    }
  })();
  let summary: { success: boolean } | undefined;
  try {
    const events = run({
      files: [path.join(repository, file)],
      cwd: repository,
      isolation: 'process',
      concurrency: false,
      timeout: timeoutMs,
      execArgv: await preloadsOf(path.join(repository, file)),
    });
    for await (const event of events as AsyncIterable<Event>) {
      const { type, data } = event;
      if (type === 'test:fail') {
        const failure = failureOf(data, repository);
        if (failure !== undefined) result.failures.push(failure);
      }
      // The summary without a file is that of the run.
      if (type === 'test:summary' && data.file === undefined) {
        summary = data;
        result.passed = data.counts.passed;
        result.failed = data.counts.failed + data.counts.cancelled;
      }
      // Totals are told once, at the end of all files.
      const total = type === 'test:summary' || (type === 'test:diagnostic' && isTotal(data));
      if (!total) report.write(event);
    }
  } catch (error) {
    result.failures.push({ where: `${file} `, name: 'could not be run', error });
  }
  clearTimeout(hard);
  if (summary?.success !== true) result.failed = Math.max(result.failed, 1);
  result.ms = performance.now() - started;
  report.end();
  await reported;
  return result;
}

async function preloadsOf(file: string): Promise<string[]> {
  if (isNightly()) return [];
  const hasProperties = (await readFile(file, 'utf8')).includes("from 'fast-check'");
  return hasProperties ? ['--import', FIXED_SEED] : [];
}

async function killTestProcess(file: string): Promise<void> {
  for (const name of await readdir('/proc')) {
    const stat = await readFile(`/proc/${name}/stat`, 'utf8').catch(() => '');
    const parent = Number(/\) \S (\d+) /.exec(stat)?.[1]);
    if (parent !== process.pid) continue;
    const command = await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '');
    try {
      if (command.includes(file)) process.kill(Number(name), 'SIGKILL');
    } catch {
      // It has ended meanwhile.
    }
  }
}

/** 'tests 7', 'duration_ms 12', …: what node:test says of a whole run. */
function isTotal(data: { nesting: number; message: string }): boolean {
  return (
    data.nesting === 0 &&
    /^(tests|suites|pass|fail|cancelled|skipped|todo|duration_ms) [\d.]+$/.test(data.message)
  );
}

/** Runs a file, shows its report and adds it to the results. */
export async function reportFile(
  file: TestFile,
  options: { repository: string; timeoutMs: number; results: Results; show?: (text: string) => void },
): Promise<void> {
  const { repository, timeoutMs, results, show } = options;
  const result = await runFile(file.path, repository, timeoutMs, show);
  const { passed, failed } = result;
  results.add(result, result.failures);
  results.durations.set(file.path, result.ms);
  results.files.set(file.path, { passed, failed });
  const counts = `${passed} passed, ${failed} failed`;
  process.stdout.write(
    `\n${file.path} (${file.tier}, ${seconds(result.ms).trim()}, ${counts})\n${result.output}`,
  );
}
