/** What a gateway reports of invocations that run: each is charged while it does, and its end after it. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { it } from 'node:test';
import { json } from 'node:stream/consumers';
import { plainPeer } from '@releap/certificates/hosts';
import {
  type GatewayFunction,
  INVOCATIONS_PATH,
  newUuid,
  RecordInvocationsRequest,
  ReportRunningInvocationsRequest,
  RUNNING_INVOCATIONS_PATH,
} from '@releap/contract';
import { until } from '@releap/testing/eventually';
import pino from 'pino';
import { Check } from 'typebox/value';
import { InvocationRecords } from '../src/functions/invocation-records.ts';
import { RunningCalls } from '../src/functions/running-calls.ts';

it('calls that handlers have are reported again and again until they end, and never after their end', async () => {
  /** `running` or `ended`, with the id of the invocation. */
  const told: string[] = [];
  const durations: number[] = [];
  const control = createServer((request, response) => {
    void json(request).then((body) => {
      if (request.url === INVOCATIONS_PATH) {
        assert.ok(Check(RecordInvocationsRequest, body));
        for (const { id } of body.invocations) told.push(`ended ${id}`);
      } else {
        assert.equal(request.url, RUNNING_INVOCATIONS_PATH);
        assert.ok(Check(ReportRunningInvocationsRequest, body));
        for (const { id, elapsed_ms: ms } of body.invocations) {
          told.push(`running ${id}`);
          durations.push(ms);
        }
      }
      response.writeHead(204).end();
    });
  });
  control.listen(0, '127.0.0.1');
  await once(control, 'listening');
  const calls = new RunningCalls();
  const records = new InvocationRecords({
    control: plainPeer(`http://127.0.0.1:${(control.address() as AddressInfo).port}`),
    credential: () => Promise.resolve('secret'),
    running: { list: () => calls.list(0) },
    log: pino({ level: 'silent' }),
    reportMs: 10,
  });
  try {
    const called = { id: newUuid(), version_id: newUuid(), version: 1 } as GatewayFunction;
    const [id, waiting] = [newUuid(), newUuid()];
    const facts = {
      id,
      queuedAt: new Date(),
      called,
      source: 'invoke',
      attempt: null,
      isCold: false,
    } as const;
    {
      using call = calls.add(facts);
      using _waiting = calls.add({ ...facts, id: waiting });
      call.sent();
      await until(() => told.filter((one) => one === `running ${id}`).length >= 3);
    }
    records.add({
      ...facts,
      status: 'succeeded',
      startedAt: new Date(),
      durationMs: 1,
      cold: false,
      error: null,
    });
    await until(() => told.includes(`ended ${id}`));
    assert.equal(told.at(-1), `ended ${id}`);
    assert.deepEqual(
      durations,
      durations.toSorted((a, b) => a - b),
    );
    assert.ok(!told.includes(`running ${waiting}`), 'its handler did not have it yet');
    // Nothing runs any more.
    const before = told.length;
    records.add({
      ...facts,
      id: waiting,
      status: 'failed',
      startedAt: null,
      durationMs: null,
      cold: null,
      error: '',
    });
    await until(() => told.includes(`ended ${waiting}`));
    assert.equal(told.length, before + 1);
  } finally {
    await records.close(1_000);
    control.close();
  }
});
