/** Memory that forks of one source use together. */
import { memoryOf, sealedMib } from '../processes.ts';
import type { Row, SuiteResult } from '../report.ts';
import { type Context, DIRTY_MIB } from './context.ts';
import { Subject } from './subject.ts';

const COUNTS = [1, 10, 20];

interface Together {
  pss: number;
  /** Sealed memory of the runner that no VMM maps. */
  unmapped: number;
}

export async function sharedMemory(context: Context): Promise<SuiteResult> {
  const { service, progress, signal } = context;
  const rows: Row[] = [];
  const grow = async (
    make: () => Promise<string>,
    before: number,
    show: (count: number, now: Together) => void,
  ): Promise<string[]> => {
    const ids: string[] = [];
    for (const count of COUNTS) {
      while (ids.length < count) {
        signal.throwIfAborted();
        ids.push(await make());
      }
      await service.settled(before + count);
      show(count, await together(context));
    }
    return ids;
  };
  const remove = async (ids: string[]): Promise<void> => {
    for (const id of ids) await service.service.remove(id);
  };

  progress(`memory of ${COUNTS.at(-1)} forks`);
  const source = await Subject.create(service, { persistent: true });
  await source.dirty(DIRTY_MIB);
  await service.settled(1);
  const alone = await together(context);
  rows.push(row(`source, ${DIRTY_MIB} MiB written to`, 1, alone));
  const children = await grow(
    () => source.forkAndRun(),
    1,
    (count, now) => rows.push(row(`source and ${count} of its forks`, 1 + count, now, alone)),
  );
  await remove([...children, source.id]);

  progress(`memory of ${COUNTS.at(-1)} sandboxes from the image`);
  await service.settled(0);
  const nothing = await together(context);
  const others = await grow(
    () => service.createAndRun(),
    0,
    (count, now) => rows.push(row(`${count} from the image, nothing written to`, count, now, nothing)),
  );
  await remove(others);
  return {
    title: 'Memory of forks',
    goal:
      `Proportional set size of the VMMs of one source that has written to ${DIRTY_MIB} MiB, of its forks, which have each run ` +
      'one command, and of as many sandboxes from the image. No goal is set but that shared pages stay shared.',
    unit: 'MiB',
    rows,
    verdicts: [],
    notes: [
      'unmapped: memory that the runner holds for new guests (templates, and for five minutes the fork memory cache of ' +
        'a source) and that none of these VMMs has mapped; it exists once',
      'per extra VMM: the sum of the row less that of the first row of its kind, divided by the number of extra VMMs',
    ],
  };
}

function row(what: string, vmms: number, { pss, unmapped }: Together, before?: Together): Row {
  const more = before === undefined ? undefined : before.pss === 0 ? vmms : vmms - 1;
  return {
    what,
    values: {
      VMMs: vmms,
      'sum of PSS': pss,
      unmapped,
      'per extra VMM': more === undefined || before === undefined ? '' : (pss - before.pss) / more,
    },
  };
}

async function together({ service }: Context): Promise<Together> {
  const memory = await Promise.all((await service.vmms()).map(memoryOf));
  const runner = (await service.processes()).find(({ part }) => part === 'runner');
  const sealed = runner === undefined ? 0 : await sealedMib(runner.pid);
  const sum = (values: number[]): number => values.reduce((total, value) => total + value, 0);
  return {
    pss: sum(memory.map(({ pss }) => pss)),
    unmapped: Math.max(0, sealed - sum(memory.map(({ shared }) => shared))),
  };
}
