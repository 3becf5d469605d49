/** Forks of a running sandbox: how long the source is paused, and how soon the child responds. */
import { uuidOf } from '@releap/testing/service';
import type { Floor } from '../floor/floor.ts';
import { monotonic, type Probe } from '../probe/probe.ts';
import { type SuiteResult, summaryRows } from '../report.ts';
import { inRounds, type Samples, timed } from '../statistics.ts';
import { atMost, type Context, DIRTY_MIB, p, stepsNote, WARM_UP } from './context.ts';
import { quietGap, Subject } from './subject.ts';

export const FREEZE_GOAL_MS = 25;
const CHILD_GOAL = 1.3;
export const AT_ONCE = 10;
const ROUNDS_AT_ONCE = 5;
const QUIET_MS = 500;
const MAX_MS = 240_000;
const MAX_AT_ONCE_MS = 60_000;

const FREEZE = "source's largest gap until the fork is taken";
const WHOLE = "source's largest gap until the child has answered";
const OTHER = 'its largest gap while another sandbox is created';
const QUIET = 'the client alone: its largest gap in a quiet half second';
const CHILD = 'fork → first command of the child answered';
const FLOOR = 'floor: the same restored by hand';
const EACH = `each of ${AT_ONCE}: fork → first command answered`;
const ALL = `all ${AT_ONCE} of them`;
const FLOOR_EACH = `floor: each of ${AT_ONCE} restored by hand`;
const FLOOR_ALL = `floor: all ${AT_ONCE} of them`;

export async function forks(context: Context, floor: Floor): Promise<SuiteResult[]> {
  const { service, probe, log, rounds, progress, signal } = context;
  const source = await Subject.create(service, { persistent: true });
  const freezes: Record<string, number>[] = [];
  const logged: Record<string, number>[] = [];
  let round = 0;
  /** With the probe talking to the source, or without: it keeps an emulated machine busy. */
  const ready = async (listening: boolean): Promise<void> => {
    await probe.disconnect();
    await service.settled(1);
    await source.dirty(DIRTY_MIB);
    if (listening) await source.listenedToBy(probe);
  };
  const remove = async (ids: string[]): Promise<void> => {
    await Promise.all(ids.map((id) => service.service.remove(id)));
  };

  const single = await inRounds(
    {
      rounds: rounds.cheap,
      maxMs: MAX_MS,
      warmUp: WARM_UP,
      signal,
      onRound: (now) => {
        round = now;
        progress(`fork, round ${now + 1} of ${rounds.cheap}`);
      },
    },
    async (note) => {
      await ready(true);
      note(QUIET, await quietGap(probe, QUIET_MS));
      if (round % 4 === 0) {
        let other = '';
        const create = async (): Promise<void> => {
          other = await service.createAndRun();
        };
        note(OTHER, (await during(probe, create)).gap);
        await remove([other]);
        await ready(true);
      }
      let child = '';
      const fork = async (): Promise<void> => {
        child = await source.forkAndRun();
      };
      const seen = await during(probe, fork);
      const taken = await log.next('sandbox forked', source.uuid);
      // It is logged once child and source are independent.
      note(FREEZE, (await probe.gap(seen.from, seen.from + (taken.time + 1 - seen.wall))).largest);
      note(WHOLE, seen.gap);
      freezes.push(freezeSteps(taken.steps));
      await remove([child]);

      await ready(false);
      const asked = Date.now();
      note(CHILD, await timed(fork));
      const answered = Date.now();
      const [apart, resumed] = [
        (await log.next('sandbox forked', source.uuid)).time,
        (await log.next('sandbox continues from memory', uuidOf(child))).time,
      ];
      logged.push({
        'until source and child are apart': apart - asked,
        'until the child runs': resumed - apart,
        'until its command is answered': answered - resumed,
      });
      await remove([child]);
      note(FLOOR, (await floor.restore())[0] ?? Number.NaN);
    },
  );

  const many: Samples = await inRounds(
    {
      rounds: Math.min(ROUNDS_AT_ONCE, rounds.expensive),
      maxMs: MAX_AT_ONCE_MS,
      warmUp: 0,
      signal,
      onRound: (round) => progress(`${AT_ONCE} forks at once, round ${round + 1}`),
    },
    async (note) => {
      await ready(false);
      const children: string[] = [];
      const took: number[] = [];
      const one = async (): Promise<void> => {
        took.push(await timed(async () => children.push(await source.forkAndRun())));
      };
      await Promise.all(Array.from({ length: AT_ONCE }, one));
      for (const one of took) note(EACH, one);
      note(ALL, Math.max(...took));
      await remove(children);
      const bare = await floor.restore(AT_ONCE);
      for (const one of bare) note(FLOOR_EACH, one);
      note(FLOOR_ALL, Math.max(...bare));
    },
  );
  await probe.disconnect();
  await source.remove();

  const pick = (names: string[]): Samples =>
    Object.fromEntries(names.map((name) => [name, single[name] ?? []]));
  const gaps = pick([FREEZE, WHOLE, OTHER, QUIET]);
  const children = { ...pick([CHILD, FLOOR]), ...many };
  return [
    {
      title: 'Fork: how long the source is paused',
      goal:
        `A client outside talks to a running sandbox that has ${DIRTY_MIB} MiB written to since the fork before. ` +
        `Its largest gap around a fork is at most ${FREEZE_GOAL_MS} ms at p95.`,
      unit: 'ms',
      rows: summaryRows(gaps),
      verdicts: [
        atMost('p95 of the gap until the fork is taken, in ms,', p(gaps, FREEZE, 'p95'), FREEZE_GOAL_MS),
      ],
      notes: [stepsNote('steps of the freeze', freezes)],
      samples: gaps,
    },
    {
      title: 'Fork: how soon the child responds',
      goal:
        'From `POST /vms/:id/fork` to the first answered command of the child, a long poll until it runs included. ' +
        `p50 at most ${CHILD_GOAL} times the floor. No goal is set for ${AT_ONCE} forks of one source at once; a ` +
        'client that gets 409 because another fork is being taken asks again 3 ms later.',
      unit: 'ms',
      rows: summaryRows(children),
      verdicts: [
        atMost(
          'p50 relative to the floor',
          p(children, CHILD, 'p50') / p(children, FLOOR, 'p50'),
          CHILD_GOAL,
        ),
      ],
      notes: [stepsNote('parts of one fork', logged)],
      samples: children,
    },
  ];
}

/** The largest gap while something is done, and how long that took. */
export async function during(
  probe: Probe,
  action: () => Promise<unknown>,
): Promise<{ gap: number; took: number; from: number; wall: number }> {
  const wall = Date.now();
  const from = monotonic();
  const took = await timed(action);
  return { gap: (await probe.gap(from, monotonic())).largest, took, from, wall };
}

/** How long each step of a freeze took, from the times that the runner logs. */
export function freezeSteps(steps: Record<string, number>): Record<string, number> {
  const { frozen = NaN, stopped, taken = NaN, thawed = NaN } = steps;
  return {
    'processes frozen': frozen,
    ...(stopped === undefined ? {} : { 'virtual CPUs stopped': stopped - frozen }),
    taken: taken - (stopped ?? frozen),
    'thaw answered': thawed - taken,
  };
}
