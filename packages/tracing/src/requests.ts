import type { IncomingMessage } from 'node:http';
import type { FastifyInstance } from 'fastify';
import { isTracing, startSpan, type TraceSpan } from './span.ts';

/** Polled every few seconds by machines. */
const LEFT_OUT = new Set(['/healthz', '/livez', '/readyz', '/metrics']);

/** Makes each request of a server a span, which is active in its handler. Names and attributes never have ids or queries. */
export function traceRequests(app: FastifyInstance): void {
  if (!isTracing()) return;
  const spans = new WeakMap<IncomingMessage, TraceSpan>();
  app.addHook('onRequest', (request, reply, done) => {
    const route = request.routeOptions.url;
    const { method } = request;
    if (route === undefined || LEFT_OUT.has(route)) return done();
    const { traceparent } = request.headers;
    const span = startSpan(`${method} ${route}`, {
      kind: 'server',
      parent: typeof traceparent === 'string' ? traceparent : '',
      attributes: { 'http.request.method': method, 'http.route': route, 'releap.request_id': request.id },
    });
    if (span === undefined) return done();
    spans.set(request.raw, span);
    // Also when the client disconnects before the response.
    reply.raw.once('close', () => {
      span.set({ 'http.response.status_code': reply.statusCode });
      if (reply.statusCode >= 500) span.fail(`status ${reply.statusCode}`);
      span.end();
    });
    span.run(done);
  });
  // Events of the request, such as the end of its body, do not run in the context of the first hook.
  app.addHook('preHandler', (request, _reply, done) => {
    const span = spans.get(request.raw);
    if (span === undefined) done();
    else span.run(done);
  });
}
