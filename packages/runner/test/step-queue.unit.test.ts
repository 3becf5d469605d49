import assert from 'node:assert/strict';
import { it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { pino } from 'pino';
import { StepQueue } from '../src/reconcile/step-queue.ts';

it('calls that wait for the end of a step run one after the other, in order of arrival', async () => {
  const steps = new StepQueue(pino({ enabled: false }), () => undefined);
  const log: string[] = [];
  const work = (name: string) => async (): Promise<void> => {
    log.push(`${name} begins`);
    await sleep(2);
    log.push(`${name} ends`);
  };
  steps.begin(work('step'));
  await Promise.all(['a', 'b', 'c'].map((name) => steps.runExclusive(work(name))));
  const expected = ['step', 'a', 'b', 'c'].flatMap((name) => [`${name} begins`, `${name} ends`]);
  assert.deepEqual(log, expected);
});
