/** Snapshots: how long their sandbox is paused, and how soon a sandbox that is made from one responds. */
import { type SuiteResult, summaryRows } from '../report.ts';
import { inRounds, type Samples, timed } from '../statistics.ts';
import { atMost, type Context, DIRTY_MIB, p, stepsNote, WARM_UP } from './context.ts';
import { during, freezeSteps } from './forks.ts';
import { quietGap, Subject } from './subject.ts';

const FULL_GOAL_MS = 25;
const DISK_GOAL_MS = 50;
/** "As fast as" leaves this for noise. */
const AS_FAST = 1.1;
const CHAIN = 30;
const QUIET_MS = 1_000;
const MAX_FULL_MS = 100_000;
const MAX_CREATE_MS = 60_000;

const FULL = 'full: largest gap until it is taken';
const FULL_WHOLE = 'full: largest gap until it is ready';
const FULL_READY = 'full: from the call to `ready`';
const QUIET_FULL = 'the client alone: its largest gap in a quiet second, before a full one';
const QUIET_DISK = 'the client alone: its largest gap in a quiet second, before one of a disk';
const FROM_FULL = 'create from a full snapshot, the first one';
const FROM_FULL_AGAIN = 'create from a full snapshot, the second one';
const PERSISTENT = 'create from the image, persistent';
const IMAGE = 'create from the image';
const FIRST = `create from the first of a chain of ${CHAIN} disk snapshots`;
const NEWEST = `create from the newest of a chain of ${CHAIN} disk snapshots`;
const DISKS = [
  { scratch: 512, written: 16 },
  { scratch: 8192, written: 512 },
] as const;
type Disk = (typeof DISKS)[number];
const diskGap = ({ scratch, written }: Disk): string =>
  `disk, ${written} MiB on ${scratch}: largest gap until it is taken`;
const diskReady = ({ scratch, written }: Disk): string =>
  `disk, ${written} MiB on ${scratch}: from the call to \`ready\``;

export async function snapshots(context: Context): Promise<SuiteResult[]> {
  const full = await fullSnapshots(context);
  const disk = await diskSnapshots(context);
  const freezes: Samples = {};
  const creates: Samples = {};
  for (const [name, series] of Object.entries({ ...full.samples, ...disk.samples })) {
    (name.startsWith('create') ? creates : freezes)[name] = series;
  }
  const [small, large] = DISKS;
  return [
    {
      title: 'Snapshots: how long the sandbox is paused',
      goal:
        `The largest gap that a client outside has. Full, with ${DIRTY_MIB} MiB of memory written to since the ` +
        `one before: at most ${FULL_GOAL_MS} ms at p95. Of the disk: at most ${DISK_GOAL_MS} ms, however large it is.`,
      unit: 'ms',
      rows: summaryRows(freezes),
      verdicts: [
        atMost('full: p95 of the gap until it is taken, in ms,', p(freezes, FULL, 'p95'), FULL_GOAL_MS),
        ...DISKS.map((one) =>
          atMost(
            `disk, ${one.written} MiB written: p95 of the gap, in ms,`,
            p(freezes, diskGap(one), 'p95'),
            DISK_GOAL_MS,
          ),
        ),
      ],
      notes: [
        `p50 of the gap with ${large.written} MiB written, relative to ${small.written} MiB: ` +
          (p(freezes, diskGap(large), 'p50') / p(freezes, diskGap(small), 'p50')).toFixed(2),
        stepsNote('steps of the freeze, full', full.logged),
        ...DISKS.map((one, at) =>
          stepsNote(`steps of the freeze, disk with ${one.written} MiB`, disk.logged[at] ?? []),
        ),
      ],
      samples: freezes,
    },
    {
      title: 'Snapshots: how soon a sandbox made from one responds',
      goal:
        'From `POST /vms` to the first answered command. As fast as a create from the image in the same run, and from ' +
        `the newest snapshot of a chain of ${CHAIN} as fast as from the first (a tenth is left for noise).`,
      unit: 'ms',
      rows: summaryRows(creates),
      verdicts: (
        [
          [FROM_FULL, PERSISTENT],
          [FROM_FULL_AGAIN, PERSISTENT],
          [FIRST, IMAGE],
          [NEWEST, IMAGE],
          [NEWEST, FIRST],
        ] as const
      ).map(([one, other]) =>
        atMost(
          `${one}: p50 relative to "${other}"`,
          p(creates, one, 'p50') / p(creates, other, 'p50'),
          AS_FAST,
        ),
      ),
      samples: creates,
    },
  ];
}

interface Taken<Logged> {
  samples: Samples;
  logged: Logged;
}

async function fullSnapshots(context: Context): Promise<Taken<Record<string, number>[]>> {
  const { service, probe, log, rounds, progress, signal } = context;
  const subject = await Subject.create(service, { persistent: true });
  const logged: Record<string, number>[] = [];
  let number = 0;
  const samples = await inRounds(
    {
      rounds: rounds.expensive,
      maxMs: MAX_FULL_MS,
      warmUp: WARM_UP,
      signal,
      onRound: (round) => progress(`full snapshot, round ${round + 1} of ${rounds.expensive}`),
    },
    async (note) => {
      const name = `full-${++number}`;
      await subject.dirty(DIRTY_MIB);
      await subject.listenedToBy(probe);
      const quiet = await quietGap(probe, QUIET_MS);
      let id = '';
      const taken = await during(probe, async () => {
        id = await subject.snapshot('full', name);
      });
      const { time, steps } = await log.next('snapshot taken', subject.uuid);
      note(FULL, (await probe.gap(taken.from, taken.from + (time + 1 - taken.wall))).largest);
      note(FULL_WHOLE, taken.gap);
      note(QUIET_FULL, quiet);
      note(FULL_READY, taken.took);
      logged.push(freezeSteps(steps));
      await probe.disconnect();
      const image = { type: 'snapshot', name };
      note(FROM_FULL, await create(context, { image }));
      note(FROM_FULL_AGAIN, await create(context, { image }));
      note(PERSISTENT, await create(context, { persistent: true }));
      await service.call('DELETE', `/snapshots/${id}`);
    },
  );
  await subject.remove();
  return { samples, logged };
}

async function diskSnapshots(context: Context): Promise<Taken<Record<string, number>[][]>> {
  const { service, probe, log, rounds, progress, signal } = context;
  const logged: Record<string, number>[][] = [[], []];
  const subjects: Subject[] = [];
  for (const { scratch, written } of DISKS) {
    const subject = await Subject.create(service, { scratch_mib: scratch });
    const seed = '/seed';
    await subject.exec(
      `dd if=/dev/urandom of=${seed} bs=1M count=1 2> /dev/null; cat ${`${seed} `.repeat(written)} > /written; sync`,
    );
    subjects.push(subject);
  }
  // As many as the chain is to be long, at least.
  const count = Math.max(CHAIN, rounds.expensive);
  let number = 0;
  const freezes = await inRounds(
    {
      rounds: count,
      warmUp: 0,
      signal,
      onRound: (round) => progress(`snapshots of disks, round ${round + 1} of ${count}`),
    },
    async (note) => {
      number += 1;
      for (const [at, disk] of DISKS.entries()) {
        const subject = subjects[at];
        if (subject === undefined) continue;
        await subject.exec(`echo ${number} > /number`);
        await subject.listenedToBy(probe);
        const quiet = number % 2 === at ? await quietGap(probe, QUIET_MS) : undefined;
        const taken = await during(probe, () => subject.snapshot('disk', `disk-${at}-${number}`));
        const { steps } = await log.next('snapshot taken', subject.uuid);
        note(diskGap(disk), taken.gap);
        note(diskReady(disk), taken.took);
        if (quiet !== undefined) note(QUIET_DISK, quiet);
        logged[at]?.push(freezeSteps(steps));
      }
    },
  );
  await probe.disconnect();
  for (const subject of subjects) await subject.remove();
  const from = async (n: number): Promise<number> =>
    await create(context, { image: { type: 'snapshot', name: `disk-0-${n}` } });
  const creates = await inRounds(
    {
      rounds: rounds.expensive,
      maxMs: MAX_CREATE_MS,
      warmUp: WARM_UP,
      signal,
      onRound: (round) => progress(`creates from snapshots, round ${round + 1} of ${rounds.expensive}`),
    },
    async (note) => {
      note(IMAGE, await create(context, {}));
      note(FIRST, await from(1));
      note(NEWEST, await from(CHAIN));
    },
  );
  return { samples: { ...freezes, ...creates }, logged };
}

async function create({ service }: Context, request: Record<string, unknown>): Promise<number> {
  let id = '';
  const took = await timed(async () => {
    id = await service.createAndRun(request);
  });
  await service.service.remove(id);
  return took;
}
