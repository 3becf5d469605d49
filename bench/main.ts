/**
 * `npm run bench [-- suite …] [--samples N | --quick] [--write-docs] [--results FOLDER]`: the measurements, side by side in one run on this
 * machine. Prints Markdown tables and writes them, with every sample, to `bench/results/`; with `--write-docs` into
 * docs/performance.md too.
 */
import { execFileSync } from 'node:child_process';
import { mkdir, writeFile } from 'node:fs/promises';
import { cpus, loadavg, totalmem } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { unpackedVmm } from '../packages/runner/src/vmm/qemu/vmm-store.ts';
import { markdown, type SuiteResult } from './report.ts';
import {
  BUSY_LOAD,
  checkWholeParts,
  PUBLISHED_LOAD_MAX,
  type Machine,
  machineLine,
  processorTicks,
  stolenPart,
  writeDocs,
} from './results.ts';
import { SUITES } from './suites/index.ts';

/** Enough to see that everything works. */
const QUICK_SAMPLES = 1;

const { values, positionals } = parseArgs({
  options: {
    samples: { type: 'string', default: '20' },
    quick: { type: 'boolean', default: false },
    'write-docs': { type: 'boolean', default: false },
    /** Where the results go; `bench/results` when absent. */
    results: { type: 'string', default: join(import.meta.dirname, 'results') },
  },
  allowPositionals: true,
});
const samples = values.quick ? QUICK_SAMPLES : Number(values.samples);
if (!Number.isInteger(samples) || samples < 1)
  throw new Error(`--samples ${values.samples}: a whole number from 1`);
for (const name of positionals) {
  if (!(name in SUITES)) throw new Error(`no suite '${name}'; there are: ${Object.keys(SUITES).join(', ')}`);
}

const suites = Object.entries(SUITES).filter(
  ([name]) => positionals.length === 0 || positionals.includes(name),
);
if (values['write-docs']) checkWholeParts(suites.map(([name]) => name));

const stop = new AbortController();
for (const name of ['SIGINT', 'SIGTERM'] as const) {
  process.once(name, () => {
    process.stderr.write('\nstopping after this sample …\n');
    stop.abort(new Error('the measurements were stopped'));
  });
}

const [load = 0] = loadavg();
if (values['write-docs'] && load > PUBLISHED_LOAD_MAX)
  throw new Error(
    `--write-docs: the load of this machine is ${load.toFixed(2)}, and must be at most ${PUBLISHED_LOAD_MAX}: stop what else runs, and try again`,
  );
const machine: Omit<Machine, 'stolen'> = {
  cpu: cpus()[0]?.model ?? 'unknown',
  cores: cpus().length,
  memoryGiB: Math.round(totalmem() / 2 ** 30),
  kernel: execFileSync('uname', ['-r'], { encoding: 'utf8' }).trim(),
  qemu: (await unpackedVmm(join(import.meta.dirname, '../build')))?.version ?? '',
  node: process.version,
  loadBefore: load,
  samples,
};
if (load > BUSY_LOAD)
  process.stderr.write(`\nthis machine is not idle (load ${load.toFixed(2)}): expect noise\n`);
const results: Record<string, SuiteResult[]> = {};
const began = performance.now();
const ticksBefore = processorTicks();
try {
  for (const [name, run] of suites) {
    process.stderr.write(`\n${name} …\n`);
    const progress = (text: string): void => {
      const seconds = Math.round((performance.now() - began) / 1000);
      process.stderr.write(`  ${String(seconds).padStart(4)} s  ${text}\n`);
    };
    const tables: SuiteResult[] = [];
    results[name] = tables;
    for await (const result of await run({ samples, progress, signal: stop.signal })) {
      tables.push(result);
      process.stdout.write(`\n${markdown(result)}`);
    }
  }
} catch (error) {
  if (error !== stop.signal.reason) throw error;
  process.stderr.write('stopped, and everything taken away\n');
  process.exit(130);
}
const folder = values.results;
await mkdir(folder, { recursive: true });
const at = new Date().toISOString();
const measured: Machine = { ...machine, stolen: stolenPart(ticksBefore, processorTicks()) };
const render = (wanted: SuiteResult[]): string =>
  `${machineLine(measured, at)}\n\n${wanted.map(markdown).join('\n')}`;
await writeFile(join(folder, 'latest.json'), JSON.stringify({ at, machine: measured, results }, null, 2));
await writeFile(join(folder, 'latest.md'), render(Object.values(results).flat()));
process.stderr.write(`\nwritten to ${folder}\n`);
if (values['write-docs']) {
  await writeDocs((names) => {
    const wanted = names.flatMap((name) => results[name] ?? []);
    return wanted.length === 0 ? undefined : render(wanted);
  });
}
