/** One sandbox from its create to its first answered command, next to the floor and to gVisor. */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { Floor } from '../floor/floor.ts';
import { Gvisor } from '../gvisor/runsc.ts';
import { Subject } from '../lifecycle/subject.ts';
import { summaryRows, type SuiteResult, type Verdict } from '../report.ts';
import { busyboxRoot, CACHE, MeasuredService } from '../service.ts';
import { interleave, summarize, timed } from '../statistics.ts';
import { type Suite, suiteFolder } from '../suite.ts';

const WARM_UP = 3;
const POOL = 2;

const DIRECT = 'Releap over REST, no waiting VM';
const POOLED = `Releap over REST, from a pool of ${POOL}`;
const PERSISTENT = 'the same, persistent';
const FROM_DISK = 'the same, from a snapshot of a disk';
const PERSISTENT_FROM_DISK = 'the same, persistent and from a snapshot of a disk';
const STARTED = 'start of a stopped sandbox, from a pool';
/** What all kinds of creates may take more than the plain one. */
const SAME = 1.1;
const FLOOR = 'floor: the same template restored by hand';
const RUNSC = '`runsc run`, a container that is `true`';
const RUNSC_EXEC = '`runsc run` + `runsc exec`, a container that stays';

export const createExec: Suite = async ({ samples, progress, signal }) => {
  await using folder = await suiteFolder();
  progress('starting a service without a pool and one with');
  await using direct = await MeasuredService.start({ warmPool: 0 });
  await using pooled = await MeasuredService.start({ warmPool: POOL });
  const rootImage = await busyboxRoot();
  const floorFolder = join(folder.path, 'floor');
  await mkdir(floorFolder);
  await using floor = await Floor.start({ folder: floorFolder, cacheDir: CACHE, rootImage, slots: 1 });
  const notes: string[] = [];
  const gvisorFolder = join(folder.path, 'gvisor');
  await mkdir(gvisorFolder);
  await using gvisor = await Gvisor.prepare(gvisorFolder, rootImage).catch((error: unknown) => {
    notes.push(`gVisor does not run on this machine: ${(error as Error).message}`);
    return undefined;
  });

  progress('a snapshot of a disk, and a sandbox that is stopped');
  const image = { type: 'snapshot', name: await diskSnapshot(pooled) };
  const stopped = await pooled.createAndRun({ persistent: true });
  await pooled.stop(stopped);

  const create = async (service: MeasuredService, request: Record<string, unknown> = {}): Promise<number> => {
    let id = '';
    const took = await timed(async () => {
      id = await service.createAndRun(request);
    });
    await service.remove(id);
    // Removal, and the pool's next VM, are over before anything else is measured.
    await service.settled(service === pooled ? 1 : 0);
    return took;
  };
  const start = async (): Promise<number> => {
    const took = await timed(async () => {
      await pooled.call('POST', `/vms/${stopped}/start`);
      await pooled.running(stopped);
      await pooled.runTrue(stopped);
    });
    await pooled.stop(stopped);
    await pooled.settled(1);
    return took;
  };
  const contenders: Record<string, () => Promise<number>> = {
    [DIRECT]: () => create(direct),
    [POOLED]: () => create(pooled),
    [PERSISTENT]: () => create(pooled, { persistent: true }),
    [FROM_DISK]: () => create(pooled, { image }),
    [PERSISTENT_FROM_DISK]: () => create(pooled, { image, persistent: true }),
    [STARTED]: start,
    [FLOOR]: async () => (await floor.restore())[0] ?? Number.NaN,
  };
  if (gvisor !== undefined) {
    contenders[RUNSC] = () => timed(() => gvisor.runTrue());
    contenders[RUNSC_EXEC] = async () => {
      let name = '';
      const took = await timed(async () => {
        name = await gvisor.createAndRun();
      });
      await gvisor.remove(name);
      return took;
    };
  }
  const taken = await interleave(contenders, {
    rounds: samples,
    warmUp: Math.min(WARM_UP, samples - 1),
    signal,
    onRound: (round) => progress(round < 0 ? 'warming up' : `round ${round + 1} of ${samples}`),
  });
  const p50 = (name: string): number => summarize(taken[name] ?? []).p50;
  const verdicts: Verdict[] = [
    {
      what: 'p50 without a pool, relative to the floor,',
      value: p50(DIRECT) / p50(FLOOR),
      goal: 'at most 1.5',
      met: p50(DIRECT) <= 1.5 * p50(FLOOR),
    },
    {
      what: 'p50 with a pool, relative to the floor,',
      value: p50(POOLED) / p50(FLOOR),
      goal: 'below 1',
      met: p50(POOLED) < p50(FLOOR),
    },
    ...[PERSISTENT, FROM_DISK, PERSISTENT_FROM_DISK].map((name) => ({
      what: `p50 of "${name}", relative to the plain one from the pool,`,
      value: p50(name) / p50(POOLED),
      goal: `at most ${SAME}`,
      met: p50(name) <= SAME * p50(POOLED),
    })),
    ...(gvisor === undefined
      ? []
      : [
          {
            what: 'p50 with a pool, relative to `runsc run`,',
            value: p50(POOLED) / p50(RUNSC),
            goal: 'at most 1',
            met: p50(POOLED) <= p50(RUNSC),
          },
        ]),
  ];
  const result: SuiteResult = {
    title: 'From `POST /vms` to the first answered command',
    goal:
      'One sandbox at a time: create, long poll until it runs, `true` through the gateway. ' +
      'p50 at most 1.5 times the floor without a pool of waiting VMs; with one below it, at most that of `runsc run`, and ' +
      `within a tenth (for noise) the same for every kind of create.`,
    unit: 'ms',
    rows: summaryRows(taken),
    verdicts,
    notes,
    samples: taken,
  };
  return [result];
};

/** Takes a snapshot of the disk of a sandbox that is removed afterwards. @returns its name */
async function diskSnapshot(service: MeasuredService): Promise<string> {
  const subject = await Subject.create(service, {});
  await subject.exec('dd if=/dev/urandom of=/written bs=1M count=16 2> /dev/null; sync');
  await subject.snapshot('disk', 'base');
  await subject.remove();
  return 'base';
}
