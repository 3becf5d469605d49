/** Pause and resume of one sandbox, with little and with much of its memory written to. */
import { access } from 'node:fs/promises';
import { join } from 'node:path';
import type { Floor } from '../floor/floor.ts';
import { monotonic } from '../probe/probe.ts';
import { until } from '../processes.ts';
import { type SuiteResult, summaryRows } from '../report.ts';
import { inRounds, type Samples, timed } from '../statistics.ts';
import { atMost, type Context, DIRTY_MIB, p, stepsNote, WARM_UP } from './context.ts';
import { quietGap, Subject } from './subject.ts';

const PAUSE_GOAL_MS = 50;
const RESUME_GOAL = 1.5;
const QUIET_MS = 500;
/**
 * MiB written to, and of memory: half of that is as much as `/dev/shm` takes. The whole suite takes less than a quarter
 * of an hour: on a machine that has much else to do there are fewer samples.
 */
const SIZES = [
  { dirty: 16, memory: 1024, maxMs: 75_000 },
  { dirty: DIRTY_MIB, memory: 1024, maxMs: 120_000 },
  { dirty: 512, memory: 2048, maxMs: 100_000 },
];

const FLOOR = `floor: ${DIRTY_MIB} MiB, restored by hand`;
const JITTER = 'the client alone: its largest gap in half a second before a pause';
const resume = (mib: number): string => `resume, ${mib} MiB written to`;
const outsideOf = (mib: number): string => `${mib} MiB: from the last answer to safe`;
const askedOf = (mib: number): string => `${mib} MiB: from asking the guest's agent to safe`;
const stoppedOf = (mib: number): string => `${mib} MiB: from stopped virtual CPUs to safe`;
const callOf = (mib: number): string => `${mib} MiB: from the call to \`paused\``;

export async function pauseAndResume(context: Context, floor: Floor): Promise<SuiteResult[]> {
  const { service, probe, log, rounds, progress, signal } = context;
  const resumes: Samples = {};
  const pauses: Samples = {};
  const notes: string[] = [];
  for (const { dirty, memory, maxMs } of SIZES) {
    const subject = await Subject.create(service, { persistent: true, mem_mib: memory });
    const logged: Record<string, number>[] = [];
    const count = dirty > DIRTY_MIB ? rounds.expensive : rounds.cheap;
    const taken = await inRounds(
      {
        rounds: count,
        maxMs,
        warmUp: WARM_UP,
        signal,
        onRound: (round) => progress(`pause with ${dirty} MiB, round ${round + 1} of ${count}`),
      },
      async (note) => {
        await subject.dirty(dirty);
        await subject.listenedToBy(probe);
        note(JITTER, await quietGap(probe, QUIET_MS));
        note(callOf(dirty), await timed(() => subject.pause()));
        const lastAnswer = wall(await probe.lastAnswer());
        const { time, steps } = await log.next('sandbox paused', subject.uuid);
        const { frozen = NaN, precopied = 0, stopped = NaN, copied = NaN, safe = NaN, ended = NaN } = steps;
        note(outsideOf(dirty), time - (ended - safe) - lastAnswer);
        note(askedOf(dirty), safe - precopied);
        note(stoppedOf(dirty), safe - stopped);
        logged.push({
          'pre-copied': precopied,
          'processes frozen': frozen,
          'virtual CPUs stopped': stopped - precopied - frozen,
          'remaining memory and device state saved': copied - stopped,
          reported: safe - copied,
        });
        // The memory is still being fsynced, which the next step must neither wait for nor suffer from.
        await until('the memory is on the disk', () => exists(join(subject.keep, 'durable')));
        note(resume(dirty), await timed(() => subject.resumeAndRun()));
        if (dirty === DIRTY_MIB) note(FLOOR, (await floor.restore())[0] ?? Number.NaN);
      },
    );
    await probe.disconnect();
    await subject.remove();
    notes.push(stepsNote(`steps of a pause with ${dirty} MiB`, logged));
    for (const [name, series] of Object.entries(taken)) {
      const table = name === FLOOR || name === resume(dirty) ? resumes : pauses;
      table[name] = [...(table[name] ?? []), ...series];
    }
  }
  const ordered = (samples: Samples, names: string[]): Samples =>
    Object.fromEntries(names.map((name) => [name, samples[name] ?? []]));
  const each = (name: (mib: number) => string): string[] => SIZES.map(({ dirty }) => name(dirty));
  const resumed = ordered(resumes, [...each(resume), FLOOR]);
  const paused = ordered(pauses, [
    ...each(outsideOf),
    ...each(askedOf),
    ...each(stoppedOf),
    ...each(callOf),
    JITTER,
  ]);
  const [ours, bare] = [p(resumed, resume(DIRTY_MIB), 'p50'), p(resumed, FLOOR, 'p50')];
  return [
    {
      title: 'Resume',
      goal:
        'From `POST /vms/:id/resume` to the first answered command, a long poll until it runs included. p50 at most ' +
        `${RESUME_GOAL} times the floor: memory and state of such a sandbox, restored by hand with bare QEMU.`,
      unit: 'ms',
      rows: summaryRows(resumed),
      verdicts: [
        atMost(`p50 with ${DIRTY_MIB} MiB written to, relative to the floor,`, ours / bare, RESUME_GOAL),
      ],
      samples: resumed,
    },
    {
      title: 'Pause',
      goal:
        `The guest is paused for at most ${PAUSE_GOAL_MS} ms at p95 until its state is safe, however much it has written to. ` +
        'The same memory is written to again before each pause.',
      unit: 'ms',
      rows: summaryRows(paused),
      verdicts: SIZES.map(({ dirty }) =>
        atMost(
          `p95 with ${dirty} MiB from the last answer to safe, in ms,`,
          p(paused, outsideOf(dirty), 'p95'),
          PAUSE_GOAL_MS,
        ),
      ),
      notes: [...notes, `the probe has ${probe.first ? 'real-time' : 'normal'} priority`],
      samples: paused,
    },
  ];
}

/** A time of the monotonic clock as wall time. */
function wall(moment: number): number {
  return Date.now() - (monotonic() - moment);
}

async function exists(path: string): Promise<boolean> {
  return await access(path).then(
    () => true,
    () => false,
  );
}
