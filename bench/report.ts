import { type Samples, summarize } from './statistics.ts';

/** One row of a result table: a thing measured, and what it is compared with. */
export interface Row {
  what: string;
  values: Record<string, number | string>;
}

export interface Verdict {
  what: string;
  value: number;
  goal: string;
  met: boolean;
}

export interface SuiteResult {
  title: string;
  /** The goal, in one sentence; shown with the numbers so that a reader need not look it up. */
  goal: string;
  unit: string;
  rows: Row[];
  /** The answer to the goal: a ratio or a count, and whether it is met. */
  verdicts: Verdict[];
  /** What the reader must know besides: what was left out and why, what a column means. */
  notes?: string[];
  /** All samples, for those who want to compute something else. */
  samples?: Samples;
}

const shown = (value: number | string | undefined): string =>
  typeof value === 'number'
    ? Number.isInteger(value) || value >= 100
      ? value.toFixed(0)
      : value.toFixed(value >= 10 ? 1 : 2)
    : (value ?? '');

/** One row a series: how many samples, percentiles, extremes. */
export function summaryRows(samples: Samples): Row[] {
  return Object.entries(samples).map(([what, series]) => ({ what, values: { ...summarize(series) } }));
}

/** The result as a Markdown table, readable in a terminal too. */
export function markdown(result: SuiteResult): string {
  const columns = [...new Set(result.rows.flatMap((row) => Object.keys(row.values)))];
  const table = [
    [result.unit, ...columns],
    ['---', ...columns.map(() => '---:')],
    ...result.rows.map((row) => [row.what, ...columns.map((column) => shown(row.values[column]))]),
  ].map((cells) => `| ${cells.join(' | ')} |`);
  const verdicts = result.verdicts.map(
    ({ what, value, goal, met }) =>
      `- ${met ? 'met' : '**missed**'}: ${what} is ${shown(value)} (goal: ${goal})`,
  );
  const notes = (result.notes ?? []).map((note) => `- ${note}`);
  const said = [...verdicts, ...notes];
  return [`### ${result.title}`, '', result.goal, '', ...table, '', ...said, ''].join('\n');
}
