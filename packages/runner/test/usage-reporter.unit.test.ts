import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { CpuReading } from '@releap/contract';
import { pino } from 'pino';
import { type CpuCounter, UsageReporter } from '../src/metering/usage-reporter.ts';

const log = pino({ level: 'silent' });
const counter: CpuCounter = { incarnation: 'boot-1-2', cpuMicros: 1_000_000.4, ageMicros: 2_000_000 };

function reporter(running: string[], read: (vmId: string) => Promise<CpuCounter | undefined>) {
  const told: CpuReading[][] = [];
  const one = new UsageReporter({
    running: () => running,
    read,
    report: (readings) => told.push(readings),
    log,
  });
  return { one, told };
}

describe('the reporter of CPU use', () => {
  it('reports the counters of every running micro-VM, in whole microseconds', async () => {
    const { one, told } = reporter(['a', 'b'], async () => counter);
    await one.report();
    const reading = { incarnation: 'boot-1-2', cpu_usec: 1_000_000, age_usec: 2_000_000 };
    assert.deepEqual(told, [
      [
        { vm_id: 'a', ...reading },
        { vm_id: 'b', ...reading },
      ],
    ]);
  });

  it('tells the counter of one at once, when its run begins and before it ends', () => {
    const { one, told } = reporter([], async () => undefined);
    one.tell('a', counter);
    assert.deepEqual(told, [
      [{ vm_id: 'a', incarnation: 'boot-1-2', cpu_usec: 1_000_000, age_usec: 2_000_000 }],
    ]);
  });

  it('leaves out those that have ended and those that cannot be read, and reports the others', async () => {
    const { one, told } = reporter(['gone', 'broken', 'good'], async (vmId) => {
      if (vmId === 'broken') throw new Error('EIO');
      return vmId === 'gone' ? undefined : counter;
    });
    await one.report();
    assert.deepEqual(
      told.flat().map((reading) => reading.vm_id),
      ['good'],
    );
  });

  it('sends nothing when nothing runs, and never more at once than a message may hold', async () => {
    const none = reporter([], async () => counter);
    await none.one.report();
    assert.deepEqual(none.told, []);
    const many = reporter(
      Array.from({ length: 2_001 }, (_, index) => `vm-${index}`),
      async () => counter,
    );
    await many.one.report();
    assert.deepEqual(
      many.told.map((part) => part.length),
      [1_000, 1_000, 1],
    );
  });
});
