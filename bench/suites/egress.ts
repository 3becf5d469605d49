/** What the egress proxy costs connections that a domain of an egress policy allows. */
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { endOf } from '../processes.ts';
import { summaryRows, type Verdict } from '../report.ts';
import { inRounds, percentile, type Samples } from '../statistics.ts';
import { suiteFolder, type Suite } from '../suite.ts';

const MIB = { full: 128, quick: 16 };
const GOAL = 0.7;
const ROUNDS_MAX = 20;

export const egress: Suite = async ({ samples, progress, signal }) => {
  await using folder = await suiteFolder();
  const mib = samples === 1 ? MIB.quick : MIB.full;
  const warmUp = 1;
  const rounds = Math.min(samples, ROUNDS_MAX);
  progress('starting a sandbox in a network of its own');
  const child = spawn(process.execPath, [join(import.meta.dirname, '../egress/transfers.ts')], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: {
      ...process.env,
      RELEAP_BENCH_FOLDER: join(folder.path, 'home'),
      RELEAP_BENCH_MIB: String(mib),
      RELEAP_BENCH_ROUNDS: String(rounds + warmUp),
    },
  });
  const onAbort = (): void => void child.kill();
  signal.addEventListener('abort', onAbort);
  let measured: Samples;
  try {
    const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
    measured = await inRounds(
      {
        rounds,
        warmUp,
        signal,
        onRound: (round) => progress(`transfers, round ${round + 1} of ${rounds}`),
      },
      async (note) => {
        const { value } = (await lines.next()) as { value: string | undefined };
        if (value === undefined) throw new Error('the transfers ended early');
        for (const [what, rate] of Object.entries(JSON.parse(value) as Record<string, number>))
          note(what, rate);
      },
    );
    await endOf(child);
  } finally {
    signal.removeEventListener('abort', onAbort);
    child.kill();
  }
  const median = (what: string): number =>
    percentile(
      (measured[what] ?? []).toSorted((a, b) => a - b),
      0.5,
    );
  const verdict = (direction: string): Verdict => {
    const value = median(`proxied, ${direction}`) / median(`straight, ${direction}`);
    return {
      what: `rate through the proxy beside the direct one, ${direction},`,
      value,
      goal: `at least ${GOAL}`,
      met: value >= GOAL,
    };
  };
  return [
    {
      title: 'Egress through the proxy',
      goal: `One connection of ${mib} MiB between a guest and a server on this machine: to an address that the policy lists, and to one that a domain opened.`,
      unit: 'MiB/s',
      rows: summaryRows(measured),
      verdicts: [verdict('to the guest'), verdict('from the guest')],
      notes: ['the server runs on the same processors as the guest and the proxy'],
      samples: measured,
    },
  ];
};
