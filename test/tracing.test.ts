/** Traces of OpenTelemetry through control plane, runner and gateway, received by a real OTLP receiver. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import { type ReceivedSpan, startOtlpReceiver } from '@releap/testing/otlp-receiver';
import { Service } from '@releap/testing/service';

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const PARENT = '00f067aa0ba902b7';
const traceparent = `00-${TRACE}-${PARENT}-01`;

test('one trace leads from POST /vms over its placement and its start by the runner to the guest that is ready', async () => {
  await using receiver = await startOtlpReceiver();
  await using service = await Service.start({ OTEL_EXPORTER_OTLP_ENDPOINT: receiver.endpoint });
  const authorization = `Bearer ${service.bootstrap.api_key}`;
  const created = await fetch(`${service.bootstrap.base_url}/vms`, {
    method: 'POST',
    headers: { authorization, traceparent, 'content-type': 'application/json' },
    body: JSON.stringify({ image: 'busybox', cpu: 1, mem_mib: 256, scratch_mib: 64 }),
  });
  assert.equal(created.status, 200, await created.clone().text());
  const { vm_id: id } = (await created.json()) as { vm_id: string };
  assert.equal((await service.waitFor(id, 'running'))['status'], 'running');

  const find = (service: string, name: string): Promise<ReceivedSpan> =>
    eventually(`the span ${name} of ${service} arrives`, () =>
      receiver.spans.find((span) => span.traceId === TRACE && span.service === service && span.name === name),
    );
  const post = await find('releap-control', 'POST /vms');
  assert.equal(post.parentId, PARENT);
  assert.equal(post.attributes['http.response.status_code'], 200);
  for (const [part, name] of [
    ['releap-control', 'place sandbox'],
    ['releap-control', 'start sandbox'],
    ['releap-runner', 'reconcile sandbox to running'],
  ] as const)
    assert.equal((await find(part, name)).parentId, post.spanId, name);
  const reconcile = await find('releap-runner', 'reconcile sandbox to running');
  const start = await find('releap-runner', 'start micro-VM');
  const ready = await find('releap-runner', 'guest until ready');
  assert.deepEqual([start.parentId, ready.parentId], [reconcile.spanId, start.spanId]);
  // The supervisor writes what the runner logs.
  const { trace_id, span_id } = await eventually('the line of the start in the log', async () => {
    const log = await readFile(path.join(service.home, 'log', 'runner.log'), 'utf8');
    const line = log.split('\n').find((one) => one.includes('"sandbox runs"'));
    return line !== undefined && (JSON.parse(line) as Record<string, string>);
  });
  assert.deepEqual([trace_id, span_id], [TRACE, start.spanId]);

  // A request to the toolbox: gateway, its question to the control plane, and the runner.
  const exec = await fetch(`${await service.toolboxUrl()}/${id}/process/execute`, {
    method: 'POST',
    headers: { authorization, traceparent, 'content-type': 'application/json' },
    body: JSON.stringify({ command: 'true' }),
  });
  assert.equal(exec.status, 200, await exec.text());
  const through = await find('releap-gateway', 'gateway POST');
  assert.equal(through.parentId, PARENT);
  assert.equal((await find('releap-control', 'resolve toolbox')).parentId, through.spanId);
  await eventually('a span of the runner has the gateway as its parent', () =>
    receiver.spans.some((span) => span.service === 'releap-runner' && span.parentId === through.spanId),
  );
});
