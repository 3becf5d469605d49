/** OpenTelemetry's SDK. Loaded only when traces are on: it takes a tenth of a second and megabytes. */
import { context, diag, DiagLogLevel, trace } from '@opentelemetry/api';
import * as api from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { resourceFromAttributes } from '@opentelemetry/resources';
import {
  BatchSpanProcessor,
  ParentBasedSampler,
  TraceIdRatioBasedSampler,
  TracerProvider,
} from '@opentelemetry/sdk-trace';
import type { Logger } from 'pino';
import { useTracer } from './span.ts';

export interface TracingOptions {
  /** Base URL of the collector's OTLP receiver over HTTP; `/v1/traces` is appended. */
  endpoint: string;
  /** Share of the traces that begin here and are recorded, from 0 to 1. A parent's decision is followed. */
  ratio: number;
  /** Name of the service, as `releap-control`. */
  service: string;
  /** The process among those of the service. */
  instance: string;
  log: Logger;
}

const EXPORT_TIMEOUT_MS = 10_000;
/** Spans beyond this are dropped while the collector does not answer. */
const QUEUE_SPANS = 4_096;
const EXPORT_DELAY_MS = 2_000;
/** A stop does not wait longer for a collector. */
const CLOSE_MS = 3_000;

/** Starts to record spans. Disposing sends the rest, and ends it. */
export function startTracing({ endpoint, ratio, service, instance, log }: TracingOptions): AsyncDisposable {
  // Failed exports are reported by this alone. They must not flood the log.
  let reported = 0;
  const report = (message: string): void => {
    if (performance.now() < reported) return;
    reported = performance.now() + 60_000;
    log.warn({ reason: message.slice(0, 500) }, 'traces could not be exported');
  };
  const quiet = (): void => undefined;
  diag.setLogger(
    { error: report, warn: report, info: quiet, debug: quiet, verbose: quiet },
    DiagLogLevel.WARN,
  );
  const provider = new TracerProvider({
    resource: resourceFromAttributes({ 'service.name': service, 'service.instance.id': instance }),
    sampler: new ParentBasedSampler({ root: new TraceIdRatioBasedSampler(ratio) }),
    spanProcessors: [
      new BatchSpanProcessor({
        exporter: new OTLPTraceExporter({
          url: `${endpoint.replace(/\/+$/, '')}/v1/traces`,
          timeoutMillis: EXPORT_TIMEOUT_MS,
        }),
        maxQueueSize: QUEUE_SPANS,
        scheduledDelayMillis: EXPORT_DELAY_MS,
        exportTimeoutMillis: EXPORT_TIMEOUT_MS,
      }),
    ],
  });
  const contexts = new AsyncLocalStorageContextManager().enable();
  context.setGlobalContextManager(contexts);
  useTracer({ api: { ...api, trace, context }, tracer: provider.getTracer('releap') });
  return {
    async [Symbol.asyncDispose]() {
      useTracer(undefined);
      const deadline = Promise.withResolvers<void>();
      const timer = setTimeout(deadline.resolve, CLOSE_MS);
      await Promise.race([provider.shutdown().catch(quiet), deadline.promise]);
      clearTimeout(timer);
      context.disable();
    },
  };
}
