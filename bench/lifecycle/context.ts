import type { Probe } from '../probe/probe.ts';
import type { MeasuredService } from '../service.ts';
import { type Samples, summarize } from '../statistics.ts';
import type { Verdict } from '../report.ts';
import type { RunnerLog } from './runner-log.ts';

/** Shared by all measurements of the life cycle. */
export interface Context {
  service: MeasuredService;
  probe: Probe;
  log: RunnerLog;
  /** Rounds of measurements that are cheap to repeat, and of expensive ones. */
  rounds: { cheap: number; expensive: number };
  progress: (text: string) => void;
  signal: AbortSignal;
}

/** Memory that a fork's source, a snapshot's or a resumed sandbox has written to. */
export const DIRTY_MIB = 128;
export const WARM_UP = 1;

export function p(samples: Samples, name: string, percentile: 'p50' | 'p95'): number {
  return summarize(samples[name] ?? [])[percentile];
}

export function atMost(what: string, value: number, most: number, unit = ''): Verdict {
  return { what, value, goal: `at most ${most}${unit}`, met: value <= most };
}

/** Medians of the steps that the runner logged of many operations, as one sentence. */
export function stepsNote(what: string, steps: Record<string, number>[]): string {
  const names = [...new Set(steps.flatMap((one) => Object.keys(one)))];
  const shown = names.map((name) => {
    const values = steps.flatMap((one) => (one[name] === undefined ? [] : [one[name]]));
    return `${name} ${summarize(values).p50.toFixed(1)}`;
  });
  return `${what}, medians of the runner's own log in ms: ${shown.join(', ')}`;
}
