import { readFileSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** Above this load something else is at work. */
export const BUSY_LOAD = 0.5;
/** Figures that were taken above this load are not published. */
export const PUBLISHED_LOAD_MAX = 1;

/** Fewer are no measurement. */
const FEW_SAMPLES = 10;

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
  /** Part of the processors' busy time during the run in which the hypervisor had taken them away ("steal"); 0 to 1. */
  stolen: number;
  /** Of each contender, as far as time allowed. */
  samples: number;
}

/** What the processors have done since the machine started, in ticks: the first line of /proc/stat (proc_stat(5)). */
interface ProcessorTicks {
  busy: number;
  stolen: number;
}

export function processorTicks(): ProcessorTicks {
  const [line = ''] = readFileSync('/proc/stat', 'utf8').split('\n', 1);
  const [user = 0, nice = 0, system = 0, , , irq = 0, softirq = 0, stolen = 0] = line
    .split(/\s+/)
    .slice(1)
    .map(Number);
  return { busy: user + nice + system + irq + softirq + stolen, stolen };
}

/** The part of the busy time between two readings that was stolen. */
export function stolenPart(before: ProcessorTicks, after: ProcessorTicks): number {
  return (after.stolen - before.stolen) / Math.max(1, after.busy - before.busy);
}

export function machineLine(machine: Machine, at: string): string {
  const { cpu, cores, memoryGiB, kernel, qemu, node, loadBefore, stolen, samples } = machine;
  return (
    `Measured on ${at.slice(0, 10)}: ${cores} cores (${cpu}), ${memoryGiB} GiB, Linux ${kernel}, QEMU ${qemu}, ` +
    `Node ${node}; load average before the run ${loadBefore.toFixed(2)}, ` +
    `stolen by the hypervisor during it ${(stolen * 100).toFixed(1)} % of the busy time.` +
    (loadBefore > BUSY_LOAD
      ? ' **Something else was at work: the ratios tell, the times are too long.**'
      : '') +
    (samples < FEW_SAMPLES ? ' **A short run: too few samples to tell more than that it works.**' : '')
  );
}

/** Parts of docs/performance.md, and the suites of each. All of a part is from one run. */
const PARTS: Record<string, string[]> = {
  results: ['create-exec', 'burst', 'memory', 'api'],
  'life cycle': ['lifecycle'],
  'memory-copies': ['memory-copies'],
  tenancy: ['tenancy'],
  'fair share': ['fair-share'],
  fleet: ['fleet'],
  usage: ['usage'],
  images: ['images'],
  ssh: ['ssh'],
  toolbox: ['toolbox'],
  compat: ['compat'],
  functions: ['functions'],
  'functions-cold': ['functions-cold'],
  'functions-guest': ['functions-guest'],
  'functions-map': ['functions-map'],
  'object-stores': ['object-stores'],
  volumes: ['volumes'],
  egress: ['egress'],
  previews: ['previews'],
  intercept: ['intercept'],
};
const END = '<!-- end of results -->';

/**
 * Checks that these suites make whole parts of docs/performance.md.
 * @throws when they do not: numbers of different runs do not belong side by side
 */
export function checkWholeParts(suites: string[]): void {
  for (const [part, needed] of Object.entries(PARTS)) {
    const missing = needed.filter((suite) => !suites.includes(suite));
    if (missing.length === 0 || missing.length === needed.length) continue;
    throw new Error(
      `--write-docs: part '${part}' takes ${needed.join(', ')} of one run; there is no ${missing.join(', ')}`,
    );
  }
}

/**
 * Puts results between the marks of their part of docs/performance.md.
 * @param render the text of some suites; undefined when they did not run
 * @throws when the marks are not there
 */
export async function writeDocs(render: (suites: string[]) => string | undefined): Promise<void> {
  const path = join(import.meta.dirname, '../docs/performance.md');
  let page = await readFile(path, 'utf8');
  for (const [part, suites] of Object.entries(PARTS)) {
    const text = render(suites);
    if (text === undefined) continue;
    const mark = `<!-- ${part}: written by npm run bench -- ${suites.length === 1 ? `${suites[0]} ` : ''}--write-docs -->`;
    const begin = page.indexOf(mark);
    const end = page.indexOf(END, begin);
    if (begin < 0 || end < begin) throw new Error(`${path} has no place for results: ${mark}`);
    page = `${page.slice(0, begin + mark.length)}\n\n${text}\n${page.slice(end)}`;
  }
  await writeFile(path, page);
}
