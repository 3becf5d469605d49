/** Pause, resume, fork and snapshots of real sandboxes, seen from outside, next to the same done by hand. */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { Floor } from '../floor/floor.ts';
import { copyPaused } from '../floor/paused-copy.ts';
import { type Context, DIRTY_MIB } from '../lifecycle/context.ts';
import { AT_ONCE, forks } from '../lifecycle/forks.ts';
import { freezes } from '../lifecycle/freezes.ts';
import { pauseAndResume } from '../lifecycle/pause-resume.ts';
import { RunnerLog } from '../lifecycle/runner-log.ts';
import { sharedMemory } from '../lifecycle/shared-memory.ts';
import { snapshots } from '../lifecycle/snapshots.ts';
import { Subject } from '../lifecycle/subject.ts';
import { Probe } from '../probe/probe.ts';
import { busyboxRoot, CACHE, MeasuredService } from '../service.ts';
import { type Suite, suiteFolder } from '../suite.ts';

/** Rounds of cheap measurements for each requested one. */
const CHEAP = 2.5;
const DEFAULT_POOL = 2;

export const lifecycle: Suite = async function* ({ samples, progress, signal }) {
  await using folder = await suiteFolder();
  progress('starting a service');
  await using service = await MeasuredService.start({ warmPool: 0 });
  await using probe = await Probe.start();
  const context: Context = {
    service,
    probe,
    log: new RunnerLog(service.service.home),
    rounds: { cheap: Math.ceil(samples * CHEAP), expensive: samples },
    progress,
    signal,
  };
  progress('pausing a sandbox for the floor');
  await using floor = await pausedFloor(service, folder.path);
  yield* await pauseAndResume(context, floor);
  {
    // With the default configuration of a service: a VMM waits for the child's memory.
    await using pooled = await MeasuredService.start({ warmPool: DEFAULT_POOL });
    const withPool = { ...context, service: pooled, log: new RunnerLog(pooled.service.home) };
    yield* await forks(withPool, floor);
  }
  yield await freezes(context);
  yield* await snapshots(context);
  // No memory of earlier measurements is still cached in this one.
  await using fresh = await MeasuredService.start({ warmPool: 0 });
  yield await sharedMemory({ ...context, service: fresh });
};

/** Restores by hand the suspend image that the service has saved of a paused sandbox. */
async function pausedFloor(service: MeasuredService, folder: string): Promise<Floor> {
  const [keep, floor] = [join(folder, 'paused'), join(folder, 'floor')];
  await mkdir(keep);
  await mkdir(floor);
  const subject = await Subject.create(service, { persistent: true });
  await subject.dirty(DIRTY_MIB);
  await subject.pause();
  const paused = await copyPaused(subject.keep, keep);
  await subject.remove();
  const rootImage = await busyboxRoot();
  return await Floor.start({ folder: floor, cacheDir: CACHE, rootImage, slots: AT_ONCE, paused });
}
