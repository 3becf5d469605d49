/** Whether a transfer over SSH holds up other requests of the same gateway, which encrypts in the thread that serves them. */
import { Agent, get } from 'node:http';
import { type SuiteResult, summaryRows } from '../report.ts';
import { percentile, type Samples, timed } from '../statistics.ts';

const REQUESTS = 1_000;
/** More than a transfer through sshd costs them, at the 99th percentile. */
const GOAL_MS = 5;

const ALONE = 'alone';

/** It moves bytes until it is disposed of. */
export interface Transfer extends AsyncDisposable {
  readonly bytes: number;
}

export interface BesideOptions {
  /** Base URL of the gateway. */
  url: string;
  /** The gateway's own way first. */
  transfers: Record<string, () => Promise<Transfer>>;
  rounds: number;
  progress: (text: string) => void;
  signal: AbortSignal;
}

export async function besideTransfers(options: BesideOptions): Promise<SuiteResult> {
  const { url, transfers, rounds, progress, signal } = options;
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const taken: Samples = {};
  const moved: [name: string, mibPerSecond: number][] = [];
  const measure = async (name: string): Promise<void> => {
    for (let index = 0; index < REQUESTS; index++)
      (taken[name] ??= []).push(await timed(() => request(`${url}/healthz`, agent)));
  };
  try {
    for (let round = 0; round < rounds; round++) {
      progress(`requests beside a transfer, round ${round + 1} of ${rounds}`);
      signal.throwIfAborted();
      await measure(ALONE);
      for (const [name, transfer] of Object.entries(transfers)) {
        await using moving = await transfer();
        const [before, began] = [moving.bytes, performance.now()];
        await measure(`beside ${name}`);
        moved.push([name, (moving.bytes - before) / 2 ** 20 / ((performance.now() - began) / 1000)]);
      }
    }
  } finally {
    agent.destroy();
  }
  const p99 = (name: string): number =>
    percentile(
      (taken[name] ?? []).toSorted((a, b) => a - b),
      99,
    );
  const [own = '', other = ''] = Object.keys(transfers);
  const value = p99(`beside ${own}`) - p99(`beside ${other}`);
  return {
    title: 'Requests beside an SSH transfer',
    goal:
      'A request that the gateway answers itself, one after the other, while a command writes as fast as it can over SSH. At most ' +
      `${GOAL_MS} ms more at the 99th percentile than beside the same transfer through sshd, which takes as much of the machine.`,
    unit: 'ms',
    rows: summaryRows(taken),
    verdicts: [
      { what: 'further latency p99 in ms', value, goal: `at most ${GOAL_MS}`, met: value <= GOAL_MS },
    ],
    notes: [
      `The transfers: ${moved.map(([name, rate]) => `${rate.toFixed(1)} MiB/s (${name})`).join(', ')}.`,
    ],
    samples: taken,
  };
}

async function request(url: string, agent: Agent): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  get(url, { agent }, (answer) => answer.resume().once('end', resolve).once('error', reject)).once(
    'error',
    reject,
  );
  await promise;
}
