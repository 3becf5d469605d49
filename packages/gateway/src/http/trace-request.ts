import type { IncomingMessage, ServerResponse } from 'node:http';
import { isTracing, startSpan } from '@releap/tracing';
import { PROBES } from './probes.ts';

/** Serves a request within a span of its own, if there are traces. */
export function traceRequest(request: IncomingMessage, response: ServerResponse, serve: () => void): void {
  if (!isTracing() || PROBES.has(request.url)) return serve();
  const { traceparent } = request.headers;
  const { method = 'GET' } = request;
  const span = startSpan(`gateway ${method}`, {
    kind: 'server',
    parent: typeof traceparent === 'string' ? traceparent : '',
    attributes: { 'http.request.method': method },
  });
  response.once('close', () => {
    const { statusCode: status } = response;
    span?.set({ 'http.response.status_code': status });
    if (status >= 500) span?.fail(`status ${status}`);
    span?.end();
  });
  if (span === undefined) serve();
  else span.run(serve);
}
