import assert from 'node:assert/strict';
import { registerHooks } from 'node:module';
import { describe, it } from 'node:test';
import { quiet } from '@releap/testing/logging';
import { startOtlpReceiver } from '@releap/testing/otlp-receiver';

const loaded: string[] = [];
registerHooks({
  resolve(specifier, context, next) {
    loaded.push(specifier);
    return next(specifier, context);
  },
});
const { activeTraceparent, isTracing, startSpan, traced, traceIds } = await import('../src/index.ts');

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const parent = `00-${TRACE}-00f067aa0ba902b7-01`;

describe('while traces are off', () => {
  it('nothing of OpenTelemetry is loaded, and work runs as it is', async () => {
    assert.deepEqual([isTracing(), startSpan('x', { kind: 'server', parent })], [false, undefined]);
    assert.deepEqual([activeTraceparent(), traceIds()], [undefined, {}]);
    assert.equal(await traced('x', async () => 7, { parent }), 7);
    assert.deepEqual(
      loaded.filter((specifier) => specifier.includes('opentelemetry')),
      [],
    );
  });
});

describe('while traces are on', () => {
  it('a span continues the trace of its parent, is active in its work, and arrives with the end of the process', async () => {
    await using receiver = await startOtlpReceiver();
    const { startTracing } = await import('../src/sdk.ts');
    const options = {
      endpoint: `${receiver.endpoint}/`,
      ratio: 1,
      service: 'test',
      instance: '1',
      log: quiet,
    };
    await using tracing = startTracing(options);
    const span = startSpan('request', { kind: 'server', parent, attributes: { 'http.route': '/vms/:id' } });
    assert.ok(span);
    const failed = span.run(() => traced('step', () => Promise.reject(new Error('broken'))));
    await assert.rejects(failed, /broken/);
    assert.deepEqual(
      [span.run(traceIds)['trace_id'], span.run(activeTraceparent), span.traceparent.slice(3, 35)],
      [TRACE, span.traceparent, TRACE],
    );
    span.end();
    startSpan('not recorded', { kind: 'server', parent: parent.replace(/1$/, '0') })?.end();
    await tracing[Symbol.asyncDispose]();
    const [step, request, ...more] = receiver.spans;
    assert.deepEqual(more, []);
    assert.ok(step && request);
    assert.deepEqual([step.name, step.isFailed, step.parentId], ['step', true, request.spanId]);
    assert.deepEqual(
      [request.traceId, request.parentId, request.service],
      [TRACE, '00f067aa0ba902b7', 'test'],
    );
    assert.equal(request.attributes['http.route'], '/vms/:id');
    assert.equal(isTracing(), false);
  });

  it('what is no traceparent begins a trace for a request, and none for a step', async () => {
    const { startTracing } = await import('../src/sdk.ts');
    // Nothing listens there, and the end does not wait for it.
    const options = { endpoint: 'http://127.0.0.1:1', ratio: 1, service: 'test', instance: '1', log: quiet };
    await using _tracing = startTracing(options);
    for (const text of [
      '',
      'x',
      parent.toUpperCase(),
      `00-${'0'.repeat(32)}-00f067aa0ba902b7-01`,
      `${parent}-x`,
    ]) {
      const request = startSpan('request', { kind: 'server', parent: text });
      assert.match(request?.traceparent ?? '', /^00-[0-9a-f]{32}-[0-9a-f]{16}-01$/, text);
      assert.notEqual(request?.traceparent.slice(3, 35), TRACE);
      assert.equal(startSpan('step', { parent: text }), undefined, text);
    }
    assert.equal(startSpan('step'), undefined);
  });
});
