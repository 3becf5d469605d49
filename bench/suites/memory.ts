/** Resident memory of an idle machine: of each sandbox, and of our own processes. */
import { setTimeout as sleep } from 'node:timers/promises';
import { memoryOf, type Memory, sealedMib } from '../processes.ts';
import { summaryRows, type SuiteResult } from '../report.ts';
import { MeasuredService } from '../service.ts';
import { type Samples, summarize } from '../statistics.ts';
import type { Suite } from '../suite.ts';

const SANDBOXES = 5;
const PAUSE_MS = 250;
const GOAL_MB = 60;
/** Of each of our own processes. */
const OWN_GOAL_MB = 60;

const VMM = `VMM of one of ${SANDBOXES} idle sandboxes`;
const WITH_TEMPLATE = 'the same with its share of the unmapped template';

export const memory: Suite = async ({ samples, progress, signal }) => {
  progress(`starting a service with ${SANDBOXES} sandboxes`);
  await using service = await MeasuredService.start({ warmPool: 0 });
  for (let i = 0; i < SANDBOXES; i++) await service.createAndRun();
  await service.settled(SANDBOXES);
  const processes = await service.processes();
  const parts = [...new Set(processes.map(({ part }) => part))];
  const proportional: Samples = { [VMM]: [], [WITH_TEMPLATE]: [] };
  const own: Samples = Object.fromEntries(
    parts.flatMap((part) => [
      [`${part}, resident`, []],
      [`${part}, proportional`, []],
    ]),
  );
  const last: { vmms: Memory[]; template: number } = { vmms: [], template: 0 };
  for (let round = 0; round < samples; round++) {
    signal.throwIfAborted();
    progress(`round ${round + 1} of ${samples}`);
    last.vmms = await Promise.all((await service.vmms()).map(memoryOf));
    if (last.vmms.length !== SANDBOXES)
      throw new Error(`${last.vmms.length} VMMs for ${SANDBOXES} sandboxes`);
    const runner = processes.find(({ part }) => part === 'runner');
    last.template = runner === undefined ? 0 : await sealedMib(runner.pid);
    const mapped = sum(last.vmms.map(({ shared }) => shared));
    const unmapped = Math.max(0, last.template - mapped) / SANDBOXES;
    for (const { pss } of last.vmms) {
      proportional[VMM]?.push(pss);
      proportional[WITH_TEMPLATE]?.push(pss + unmapped);
    }
    for (const part of parts) {
      const all = await Promise.all(
        processes.filter((one) => one.part === part).map(({ pid }) => memoryOf(pid)),
      );
      own[`${part}, resident`]?.push(sum(all.map(({ rss }) => rss)));
      own[`${part}, proportional`]?.push(sum(all.map(({ pss }) => pss)));
    }
    await sleep(PAUSE_MS);
  }
  const megabytes = (name: string): number => summarize(proportional[name] ?? []).p50 * 1.048576;
  const idle = megabytes(VMM);
  const mean = (pick: (memory: Memory) => number): string =>
    (sum(last.vmms.map(pick)) / last.vmms.length).toFixed(1);
  const sandboxes: SuiteResult = {
    title: 'Memory of an idle sandbox',
    goal:
      `Proportional set size (smaps_rollup: pages that several processes map are divided among them) of the VMM of a ` +
      `sandbox with 1 GiB of memory that has run one command. At most ${GOAL_MB} MB under emulation.`,
    unit: 'MiB',
    rows: summaryRows(proportional),
    verdicts: [
      {
        what: 'p50 of an idle sandbox, in MB,',
        value: idle,
        goal: `at most ${GOAL_MB}`,
        met: idle <= GOAL_MB,
      },
    ],
    notes: [
      `the template is ${last.template.toFixed(1)} MiB, held in memory once for all sandboxes of a machine size. Pages of it that no guest ` +
        `maps count for no process; divided among ${SANDBOXES} it makes ${megabytes(WITH_TEMPLATE).toFixed(1)} MB each, and less ` +
        'with more sandboxes',
      `of a VMM's share ${mean(({ anonymous }) => anonymous)} MiB are its own and the guest's changed pages, ` +
        `${mean(({ shared }) => shared)} MiB its part of the template, the rest its part of programs and libraries`,
    ],
    samples: proportional,
  };
  const service_: SuiteResult = {
    title: "Memory of the service's own processes",
    goal:
      `With ${SANDBOXES} idle sandboxes; PostgreSQL is the sum of its processes. Each of our own processes at most ` +
      `${OWN_GOAL_MB} MB of proportional set size.`,
    unit: 'MiB',
    rows: summaryRows(own),
    verdicts: parts
      .filter((part) => part !== 'PostgreSQL')
      .map((part) => {
        const value = summarize(own[`${part}, proportional`] ?? []).p50 * 1.048576;
        const what = `p50 of ${part}, proportional, in MB,`;
        return { what, value, goal: `at most ${OWN_GOAL_MB}`, met: value <= OWN_GOAL_MB };
      }),
    samples: own,
  };
  return [sandboxes, service_];
};

function sum(values: number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
