/** Many at once: how long ten creates take together, and how many a second the machine sustains. */
import { Floor } from '../floor/floor.ts';
import { summaryRows, type SuiteResult, type Verdict } from '../report.ts';
import { busyboxRoot, CACHE, MeasuredService } from '../service.ts';
import { interleave, type Samples, summarize, timed } from '../statistics.ts';
import { type Suite, suiteFolder } from '../suite.ts';

const AT_ONCE = 10;
/** Bounds the whole run on a busy machine. */
const BURSTS_MAX_MS = 300_000;
/** The first ones are not to wait for the last one. */
const MEDIAN_GOAL = 0.6;
const SUSTAINED = 60;
/** Of samples: with fewer the run is only to see that everything works. */
const SUSTAINED_FROM = 5;
const LANES = 4;
const SMALL = { mem_mib: 256 };
/** One and a half times what version 0.1 did on a machine of two cores without hardware virtualisation. */
const SUSTAINED_GOAL = 1.71;

const EACH = `each of ${AT_ONCE}: create → first command answered`;
const LAST = `all ${AT_ONCE} of them`;
const FLOOR_EACH = `floor: each of ${AT_ONCE} restored by hand`;
const FLOOR_LAST = `floor: all ${AT_ONCE} of them`;

export const burst: Suite = async ({ samples, progress, signal }) => {
  await using folder = await suiteFolder();
  progress('starting a service');
  await using service = await MeasuredService.start({ warmPool: 0 });
  await using floor = await Floor.start({
    folder: folder.path,
    cacheDir: CACHE,
    rootImage: await busyboxRoot(),
    slots: AT_ONCE,
  });
  const all: Samples = { [EACH]: [], [LAST]: [], [FLOOR_EACH]: [], [FLOOR_LAST]: [] };
  let counts = false;
  const note = (each: string, last: string, took: number[]): number => {
    if (counts) all[each]?.push(...took);
    const longest = Math.max(...took);
    if (counts) all[last]?.push(longest);
    return longest;
  };
  await interleave(
    {
      service: async () => {
        const ids: string[] = [];
        const took = await Promise.all(
          Array.from({ length: AT_ONCE }, () =>
            timed(async () => {
              ids.push(await service.createAndRun());
            }),
          ),
        );
        await Promise.all(ids.map((id) => service.remove(id)));
        await service.settled(0);
        return note(EACH, LAST, took);
      },
      floor: async () => note(FLOOR_EACH, FLOOR_LAST, await floor.restore(AT_ONCE)),
    },
    {
      rounds: samples,
      maxMs: BURSTS_MAX_MS,
      warmUp: 1,
      signal,
      onRound: (round) => {
        counts = round >= 0;
        progress(counts ? `${AT_ONCE} at once, round ${round + 1} of ${samples}` : 'warming up');
      },
    },
  );

  // The template of that size is made before.
  await service.remove(await service.createAndRun(SMALL));
  await service.settled(0);
  progress(
    `${SUSTAINED} creates of ${SMALL.mem_mib} MiB, ${LANES} at a time, each deleted after its first command`,
  );
  const each: number[] = [];
  let left = samples < SUSTAINED_FROM ? LANES : SUSTAINED;
  const count = left;
  const took = await timed(() =>
    Promise.all(
      Array.from({ length: LANES }, async () => {
        while (left-- > 0) {
          signal.throwIfAborted();
          let id = '';
          each.push(
            await timed(async () => {
              id = await service.createAndRun(SMALL);
            }),
          );
          await service.remove(id);
        }
      }),
    ),
  );
  const rate = count / (took / 1000);
  const share = summarize(all[EACH] ?? []).p50 / summarize(all[LAST] ?? []).p50;
  const verdicts: Verdict[] = [
    {
      what: `p50 of ${AT_ONCE} at once, relative to the slowest of them,`,
      value: share,
      goal: `at most ${MEDIAN_GOAL}`,
      met: share <= MEDIAN_GOAL,
    },
    {
      what: `sandboxes of ${SMALL.mem_mib} MiB a second, ${LANES} clients, deletion included,`,
      value: rate,
      goal: `at least ${SUSTAINED_GOAL}`,
      met: rate >= SUSTAINED_GOAL,
    },
  ];
  const result: SuiteResult = {
    title: 'Bursts and sustained creates, without a pool',
    goal:
      `What the machine does when it is full. The first rows have ${AT_ONCE} clients that start together: p50 at most ` +
      `${MEDIAN_GOAL} times the slowest one. The last row has ${LANES} clients that create a sandbox of ${SMALL.mem_mib} MiB, ` +
      `run \`true\` and delete it, ${SUSTAINED} times: at least ${SUSTAINED_GOAL} a second, which is 1.5 times what version ` +
      '0.1 did on a machine of two cores without hardware virtualisation.',
    unit: 'ms',
    rows: summaryRows({ ...all, [`sustained: each, ${LANES} at a time`]: each }),
    verdicts,
    samples: { ...all, sustained: each },
  };
  return [result];
};
