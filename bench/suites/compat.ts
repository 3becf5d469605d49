/** The SDK's `create()` and its first command, next to the same sandbox by the API. */
import { summaryRows } from '../report.ts';
import { MeasuredService } from '../service.ts';
import { interleave, summarize, timed } from '../statistics.ts';
import type { Suite } from '../suite.ts';

const WARM_UP = 2;
const POOL = 2;
const GOAL = 1.15;

const NATIVE = '`POST /vms`, long poll, `true` through the gateway';
const SDK = "`create()` and `executeCommand('true')` of the SDK";
const SDK_GET = '`get()` of the SDK';

/** What both create. The facade's sandboxes are dedicated. GiB, of the SDK's. */
const REQUEST = { mode: 'dedicated', cpu: 1, mem_mib: 1024, scratch_mib: 1024 };
const RESOURCES = { cpu: 1, memory: 1, disk: 1 };

export const compat: Suite = async ({ samples, progress, signal }) => {
  // Large, and nothing that other suites should load.
  const { daytonaOf } = await import('@releap/testing/daytona');
  progress('starting a service');
  await using service = await MeasuredService.start({ warmPool: POOL });
  const daytona = daytonaOf(service.service);
  const removed = async (id: string): Promise<void> => {
    await service.remove(id);
    await service.settled(0);
  };
  const contenders: Record<string, () => Promise<number>> = {
    [NATIVE]: async () => {
      let id = '';
      const took = await timed(async () => {
        id = await service.createAndRun(REQUEST);
      });
      await removed(id);
      return took;
    },
    [SDK]: async () => {
      let id = '';
      const took = await timed(async () => {
        const sandbox = await daytona.create({ image: 'busybox', resources: RESOURCES });
        ({ id } = sandbox);
        const { exitCode } = await sandbox.process.executeCommand('true');
        if (exitCode !== 0) throw new Error(`true answered ${exitCode}`);
      });
      await removed(id);
      return took;
    },
  };
  const taken = await interleave(contenders, {
    rounds: samples,
    warmUp: Math.min(WARM_UP, samples - 1),
    signal,
    onRound: (round) => progress(round < 0 ? 'warming up' : `round ${round + 1} of ${samples}`),
  });
  const sandbox = await daytona.create({ image: 'busybox', resources: RESOURCES });
  const reads = await interleave(
    { [SDK_GET]: () => timed(() => daytona.get(sandbox.id)) },
    { rounds: samples * 5, warmUp: 5, signal, onRound: () => undefined },
  );
  await removed(sandbox.id);
  const p50 = (name: string): number => summarize(taken[name] ?? []).p50;
  const samplesOfAll = { ...taken, ...reads };
  return [
    {
      title: 'The SDK of the compatibility facade',
      goal: `One sandbox at a time, dedicated, from a pool of ${POOL}: from the call of \`create()\` to the first answered command at most ${GOAL} times the API's own path.`,
      unit: 'ms',
      rows: summaryRows(samplesOfAll),
      verdicts: [
        {
          what: 'p50 of the SDK, relative to the API,',
          value: p50(SDK) / p50(NATIVE),
          goal: `at most ${GOAL}`,
          met: p50(SDK) <= GOAL * p50(NATIVE),
        },
      ],
      notes: [],
      samples: samplesOfAll,
    },
  ];
};
