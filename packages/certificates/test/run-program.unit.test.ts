import assert from 'node:assert/strict';
import { it } from 'node:test';
import { runProgram } from '../src/acme/run-program.ts';

it('a program that is killed is reported with the reason of the kill', async () => {
  const controller = new AbortController();
  const run = runProgram('/bin/sleep', ['60'], { deadlineMs: 60_000, signal: controller.signal });
  controller.abort(new Error('its time was over'));
  await assert.rejects(run, /was killed: its time was over/);
});

it('a program that takes longer than its own deadline says so', async () => {
  const run = runProgram('/bin/sleep', ['60'], { deadlineMs: 50, signal: AbortSignal.timeout(60_000) });
  await assert.rejects(run, /did not end within 0.05 s and was killed/);
});
