export {
  activeTraceparent,
  isTracing,
  type SpanOptions,
  startSpan,
  traceContext,
  traced,
  traceIds,
  type TraceSpan,
} from './span.ts';
export { traceRequests } from './requests.ts';
