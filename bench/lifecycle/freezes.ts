/** How long a fork stops its source, by how much memory that has written to. */
import type { Probe } from '../probe/probe.ts';
import { type SuiteResult, summaryRows } from '../report.ts';
import type { MeasuredService } from '../service.ts';
import { inRounds, type Samples } from '../statistics.ts';
import { atMost, type Context, p, stepsNote, WARM_UP } from './context.ts';
import { during, FREEZE_GOAL_MS, freezeSteps } from './forks.ts';
import { quietGap, Subject } from './subject.ts';

/** MiB written to, and of memory: half of that is as much as `/dev/shm` takes. */
const SIZES = [
  { written: 16, memory: 1024, maxMs: 30_000 },
  { written: 128, memory: 1024, maxMs: 30_000 },
  { written: 512, memory: 2048, maxMs: 60_000 },
  { written: 1024, memory: 3072, maxMs: 90_000 },
  { written: 4096, memory: 9216, maxMs: 240_000 },
];
/** The goal is for so much. */
const GOAL_MIB = 1024;
const QUIET_MS = 500;

const gapOf = (written: number): string => `${written} MiB written to: source's largest gap`;
const quietOf = (written: number): string => `${written} MiB written to: its gap in a quiet half second`;

export async function freezes(context: Context): Promise<SuiteResult> {
  const { service, probe, log, rounds, progress, signal } = context;
  const all: Samples = {};
  const notes: string[] = [];
  for (const { written, memory, maxMs } of SIZES) {
    const source = await Subject.create(service, { persistent: true, mem_mib: memory });
    const steps: Record<string, number>[] = [];
    const taken = await inRounds(
      {
        rounds: rounds.expensive,
        maxMs,
        warmUp: WARM_UP,
        signal,
        onRound: (round) => progress(`fork with ${written} MiB written to, round ${round + 1}`),
      },
      async (note) => {
        await calm(service, probe);
        await source.dirty(written);
        await source.listenedToBy(probe);
        note(quietOf(written), await quietGap(probe, QUIET_MS));
        let child = '';
        const seen = await during(probe, async () => {
          child = await source.forkAndRun();
        });
        const forked = await log.next('sandbox forked', source.uuid);
        note(gapOf(written), (await probe.gap(seen.from, seen.from + (forked.time + 1 - seen.wall))).largest);
        steps.push(freezeSteps(forked.steps));
        await service.service.remove(child);
      },
    );
    await probe.disconnect();
    await source.remove();
    await service.settled(0);
    Object.assign(all, taken);
    notes.push(stepsNote(`steps of the freeze with ${written} MiB`, steps));
  }
  return {
    title: 'Fork: how long the source is paused, by memory written to',
    goal:
      'As above, with sources that have written to more and less of their memory. It is copied before they are paused, and ' +
      'what they write meanwhile while they are. ' +
      `At most ${FREEZE_GOAL_MS} ms at p95 with ${GOAL_MIB} MiB.`,
    unit: 'ms',
    rows: summaryRows(all),
    verdicts: [
      atMost(
        `p95 of the gap with ${GOAL_MIB} MiB written to, in ms,`,
        p(all, gapOf(GOAL_MIB), 'p95'),
        FREEZE_GOAL_MS,
      ),
    ],
    notes,
    samples: all,
  };
}

async function calm(service: MeasuredService, probe: Probe): Promise<void> {
  await probe.disconnect();
  await service.settled(1);
}
