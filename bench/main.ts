/**
 * `npm run bench [-- suite …] [--samples N]`: the measurements, side by side in one run on this machine. Prints
 * Markdown tables and writes them, with every sample, to `bench/results/`.
 */
import { execFileSync } from 'node:child_process';
import { mkdir, writeFile } from 'node:fs/promises';
import { cpus, totalmem } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { markdown, type SuiteResult } from './report.ts';
import { SUITES } from './suites/index.ts';

const { values, positionals } = parseArgs({
  options: { samples: { type: 'string', default: '20' } },
  allowPositionals: true,
});
const samples = Number(values.samples);
if (!Number.isInteger(samples) || samples < 1)
  throw new Error(`--samples ${values.samples}: a whole number from 1`);
for (const name of positionals) {
  if (!(name in SUITES)) throw new Error(`no suite '${name}'; there are: ${Object.keys(SUITES).join(', ')}`);
}

const machine = {
  cpu: cpus()[0]?.model ?? 'unknown',
  cores: cpus().length,
  memoryGiB: Math.round(totalmem() / 2 ** 30),
  kernel: execFileSync('uname', ['-r'], { encoding: 'utf8' }).trim(),
  qemu: execFileSync('qemu-system-x86_64', ['--version'], { encoding: 'utf8' }).split('\n')[0],
  node: process.version,
};
const results: Record<string, SuiteResult[]> = {};
for (const [name, run] of Object.entries(SUITES)) {
  if (positionals.length > 0 && !positionals.includes(name)) continue;
  process.stderr.write(`\n${name} …\n`);
  results[name] = await run({ samples, progress: (text) => process.stderr.write(`  ${text}\n`) });
  for (const result of results[name]) process.stdout.write(`\n${markdown(result)}`);
}
const folder = join(import.meta.dirname, 'results');
await mkdir(folder, { recursive: true });
const text = Object.values(results).flat().map(markdown).join('\n');
await writeFile(
  join(folder, 'latest.json'),
  JSON.stringify({ at: new Date().toISOString(), machine, results }, null, 2),
);
await writeFile(join(folder, 'latest.md'), `${JSON.stringify(machine)}\n\n${text}`);
process.stderr.write(`\nwritten to ${folder}\n`);
