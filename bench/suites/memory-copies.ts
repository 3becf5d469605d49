/** Ways to copy the memory of a running guest, side by side: what they cost, and how long the guest is paused. */
import { spawn } from 'node:child_process';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { DEFAULT_MACHINE_SIZE } from '../../packages/runner/src/runner-options.ts';
import { describe } from '../floor/floor.ts';
import type { CopyRequest, CopyResult } from '../memory-copies/guest.ts';
import { endOf } from '../processes.ts';
import type { Row, SuiteResult } from '../report.ts';
import { busyboxRoot, CACHE, MeasuredService } from '../service.ts';
import { percentile } from '../statistics.ts';
import { type Suite, suiteFolder } from '../suite.ts';

/** MiB of memory, and of it written to before the copy. */
const SIZES = [
  { memMib: 256, writtenMib: 64 },
  { memMib: 1024, writtenMib: 384 },
];
const RATES = [0, 20, 100];
const WAYS: Record<CopyRequest['how'], string> = {
  'pre-copy': 'pre-copy with write tracking',
  untracked: 'the same on a kernel that tracks no writes',
  'mapped-ram': 'migration to a file, mapped-ram',
};
const ROUNDS_MAX = 5;

export const memoryCopies: Suite = async function* ({ samples, progress, signal }) {
  await using folder = await suiteFolder();
  {
    progress('making the templates');
    await using service = await MeasuredService.start({ warmPool: 0 });
    for (const { memMib } of SIZES) await service.remove(await service.createAndRun({ mem_mib: memMib }));
  }
  for (const { memMib, writtenMib } of SIZES) {
    const place = join(folder.path, String(memMib));
    await mkdir(place);
    const machine = await describe({
      folder: place,
      cacheDir: CACHE,
      rootImage: await busyboxRoot(),
      slots: 1,
      shape: { ...DEFAULT_MACHINE_SIZE, memMib },
    });
    await writeFile(join(place, 'floor.json'), JSON.stringify(machine));
    await using worker = await Worker.start(place);
    const origin = /mem-path=([^,]+)/.exec(machine.args.join('\n'))?.[1] ?? '';
    const all = new Map<string, CopyResult[]>();
    for (let round = 0; round < Math.min(samples, ROUNDS_MAX); round++) {
      for (const mibPerSecond of RATES) {
        for (const how of Object.keys(WAYS) as CopyRequest['how'][]) {
          signal.throwIfAborted();
          const what = `${WAYS[how]}, ${mibPerSecond} MiB/s written`;
          progress(`${memMib} MiB: ${what}, round ${round + 1}`);
          const result = await worker.measure({ how, origin, memMib, writtenMib, mibPerSecond });
          all.set(what, [...(all.get(what) ?? []), result]);
        }
      }
    }
    yield table(memMib, writtenMib, all);
  }
};

function table(memMib: number, writtenMib: number, all: Map<string, CopyResult[]>): SuiteResult {
  const rows: Row[] = [...all].map(([what, results]) => {
    const of = (pick: (result: CopyResult) => number, p = 50): number =>
      percentile(
        results.map(pick).sort((a, b) => a - b),
        p,
      );
    return {
      what,
      values: {
        n: results.length,
        'paused, ms': of(({ frozen }) => frozen),
        'paused, max': of(({ frozen }) => frozen, 100),
        'total, ms': of(({ total }) => total),
        'CPU, s': of(({ cpu }) => cpu),
        'copied, MiB': of(({ copied }) => copied),
        'file, MiB': of(({ file }) => file),
        'VMM before': of(({ rssBefore }) => rssBefore),
        'at most': of(({ rssPeak }) => rssPeak),
        after: of(({ rssAfter }) => rssAfter),
      },
    };
  });
  return {
    title: `Copies of the memory of a running guest of ${memMib} MiB`,
    goal:
      `Medians for a guest that has written to ${writtenMib} MiB, and writes to a quarter of its memory over and over meanwhile. ` +
      'No goal is set.',
    unit: '',
    rows,
    verdicts: [],
    notes: [
      'paused: from the request to stop the virtual CPUs, or from their stop by the migration, until they run again, devices saved. The processor time is that of the VMM too, which runs the writer',
      'the last columns are resident MiB of the VMM, with what it shares with others',
    ],
  };
}

/** The process that starts the guests and copies their memory, in a network namespace of its own. */
class Worker implements AsyncDisposable {
  readonly #process: ReturnType<typeof spawn>;
  readonly #lines: AsyncIterator<string>;

  private constructor(child: ReturnType<typeof spawn>) {
    this.#process = child;
    this.#lines = createInterface(child.stdout as NodeJS.ReadableStream)[Symbol.asyncIterator]();
  }

  static async start(folder: string): Promise<Worker> {
    const script = join(import.meta.dirname, '../memory-copies/guest.ts');
    const child = spawn('unshare', ['--net', '--', process.execPath, script, folder], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const worker = new Worker(child);
    const { value } = (await worker.#lines.next()) as { value?: string };
    if (value !== 'ready') throw new Error(`the process that copies memory said ${value}`);
    return worker;
  }

  async measure(request: CopyRequest): Promise<CopyResult> {
    this.#process.stdin?.write(`${JSON.stringify(request)}\n`);
    const { value = '{"error":"it ended"}' } = (await this.#lines.next()) as { value?: string };
    const result = JSON.parse(value) as CopyResult | { error: string };
    if ('error' in result) throw new Error(`the memory of a guest could not be copied: ${result.error}`);
    return result;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.stdin?.end();
    await endOf(this.#process);
  }
}
