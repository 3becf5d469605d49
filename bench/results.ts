import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** Above this load something else is at work. */
export const BUSY_LOAD = 0.5;

/** What the numbers depend on. */
export interface Machine {
  cpu: string;
  cores: number;
  memoryGiB: number;
  kernel: string;
  qemu: string;
  node: string;
  /** Processes that wanted to run in the minute before, on average. */
  loadBefore: number;
}

export function machineLine(machine: Machine, at: string): string {
  const { cpu, cores, memoryGiB, kernel, qemu, node, loadBefore } = machine;
  return (
    `Measured on ${at.slice(0, 10)}: ${cores} cores (${cpu}), ${memoryGiB} GiB, Linux ${kernel}, QEMU ${qemu}, ` +
    `Node ${node}; load average before the run ${loadBefore.toFixed(2)}.` +
    (loadBefore > BUSY_LOAD
      ? ' **Something else was at work: the ratios tell, the times are too long.**'
      : '')
  );
}

const BEGIN = '<!-- results: written by npm run bench -- --write-docs -->';
const END = '<!-- end of results -->';

/** Puts the results between the two marks of docs/performance.md. @throws when the marks are not there */
export async function writeDocs(text: string): Promise<void> {
  const path = join(import.meta.dirname, '../docs/performance.md');
  const page = await readFile(path, 'utf8');
  const begin = page.indexOf(BEGIN);
  const end = page.indexOf(END);
  if (begin < 0 || end < begin) throw new Error(`${path} has no place for results`);
  await writeFile(path, `${page.slice(0, begin + BEGIN.length)}\n\n${text}\n${page.slice(end)}`);
}
