/** Many invocations that no client waits for, while the processes of the service are killed in turn. */
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '@releap/testing/eventually';
import type { Role } from '@releap/testing/processes';
import type { Service } from '@releap/testing/service';
import { deployEcho, readInvocation } from '../support/echo-function.ts';

/** As many as one request may have. */
const MAP_MAX = 1000;
/** Longest time of the whole queue, for a machine that does other things. */
const PATIENCE_MS = 3_600_000;
/** How often calls are repeated for which there was no capacity. */
const SHED_TRIES = 10;

export interface FunctionsSoakOptions {
  name: string;
  spawns: number;
  /** Killed one after the other, again from the start until all invocations have ended. */
  kills: readonly Role[];
  /** How many times each is killed at most. */
  rounds: number;
  /** Between two kills, in milliseconds. */
  pauseMs: number;
  onProgress?: (line: string) => void;
}

/** @throws when an invocation is lost, has not its own result, or is recorded twice. @returns how many were killed */
export async function soakFunctions(service: Service, options: FunctionsSoakOptions): Promise<number> {
  const { name, spawns, kills, rounds, pauseMs, onProgress } = options;
  await deployEcho(service, name, { max_concurrency: 8, max_instances: 2, scaledown_window_s: 60 });
  await eventually('a version that can serve', async () => {
    const { body } = await service.call<{ versions: { template_state: string; template_error: string }[] }>(
      'GET',
      `/fns/${name}/versions`,
    );
    const [version] = body.versions;
    assert.notEqual(version?.template_state, 'failed', version?.template_error);
    return version?.template_state === 'published';
  });
  const expected = new Map<string, number>();
  const waiting = new Set<string>();
  /** Payloads of calls for which no instance had capacity in time: that of an emulated guest on a busy machine may take longer. */
  const shed: number[] = [];
  /** Of those that have ended otherwise. */
  const outcomes = new Map<string, number>();
  let called = 0;
  const call = async (numbers: readonly number[]): Promise<void> => {
    for (let at = 0; at < numbers.length; at += MAP_MAX) {
      const payloads = numbers.slice(at, at + MAP_MAX);
      const { status, body } = await service.call<{ invocation_ids: string[] }>('POST', `/fns/${name}/map`, {
        payloads,
      });
      assert.equal(status, 200, JSON.stringify(body));
      for (const [n, id] of body.invocation_ids.entries()) {
        expected.set(id, payloads[n] ?? assert.fail('more ids than payloads'));
        waiting.add(id);
      }
    }
    called += numbers.length;
  };
  await call(Array.from({ length: spawns }, (_, n) => n));
  let killed = 0;
  const look = async (): Promise<void> => {
    for (const id of waiting) {
      const found = await readInvocation(service, id);
      // The oldest are first: those after it have hardly ended.
      if (!found.done) break;
      waiting.delete(id);
      if (found.status === 'shed') shed.push(expected.get(id) ?? assert.fail(id));
      else if (found.status !== 'succeeded')
        outcomes.set(
          `${found.status}: ${found.error}`,
          (outcomes.get(`${found.status}: ${found.error}`) ?? 0) + 1,
        );
      else assert.equal(found.result, expected.get(id), id);
    }
  };
  for (let round = 0; round < rounds && waiting.size > 0; round += 1) {
    for (const role of kills) {
      if (waiting.size === 0) break;
      await service.kill9(role);
      killed += 1;
      await sleep(pauseMs);
      await eventually('an answer', () => look().then(() => true));
      onProgress?.(`killed ${role}: ${spawns - waiting.size} of ${spawns} have ended`);
    }
  }
  for (let tries = 0; ; tries += 1) {
    await eventually(
      'all have ended',
      async () => {
        await look();
        if (waiting.size > 0) throw new Error(`${waiting.size} have not`);
        return true;
      },
      PATIENCE_MS,
    );
    if (shed.length === 0 || tries === SHED_TRIES) break;
    await call(shed.splice(0));
  }
  assert.deepEqual([Object.fromEntries(outcomes), shed], [{}, []]);
  // What is recorded twice is counted twice.
  const { body } = await service.call<{ functions: { total: number; succeeded: number }[] }>(
    'GET',
    `/fns/usage/report?fn=${name}`,
  );
  assert.deepEqual([body.functions[0]?.total, body.functions[0]?.succeeded], [called, spawns]);
  return killed;
}
