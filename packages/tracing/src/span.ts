/**
 * Spans of traces. While traces are off, each function returns at once, and nothing of the SDK is loaded (sdk.ts).
 *
 * The parts of the service pass the parent of a span on as W3C Trace Context (https://www.w3.org/TR/trace-context/): in the header
 * `traceparent`, and in a field of that name of the messages of their links.
 */
import type * as OpenTelemetry from '@opentelemetry/api';
import type { Attributes, Context, Span, Tracer } from '@opentelemetry/api';

type Api = typeof OpenTelemetry;

export interface SpanOptions {
  /** `server`: of a request of another process; it begins a trace if it has no parent. Default `internal`: only within a trace. */
  kind?: 'server' | 'internal';
  /** The parent's `traceparent`, untrusted. Default: the active span. */
  parent?: string | undefined;
  attributes?: Attributes;
  /** Default: now. */
  startTime?: Date;
}

interface Started {
  api: Api;
  tracer: Tracer;
}

let started: Started | undefined;

/** Called by the SDK when it has started, and with undefined when it ends. */
export function useTracer(value: Started | undefined): void {
  started = value;
}

/** Whether traces are on. It does not change after the start of a process. */
export function isTracing(): boolean {
  return started !== undefined;
}

/** @returns undefined while traces are off, and for an internal span without a trace */
export function startSpan(name: string, options: SpanOptions = {}): TraceSpan | undefined {
  if (started === undefined) return undefined;
  const { api, tracer } = started;
  const { kind = 'internal', parent, attributes = {}, startTime } = options;
  const from = parent === undefined ? api.context.active() : contextOf(api, parent);
  if (kind === 'internal' && api.trace.getSpanContext(from) === undefined) return undefined;
  const span = tracer.startSpan(
    name,
    {
      kind: kind === 'server' ? api.SpanKind.SERVER : api.SpanKind.INTERNAL,
      attributes,
      ...(startTime === undefined ? {} : { startTime }),
    },
    from,
  );
  return new TraceSpan(api, span, api.trace.setSpan(from, span));
}

/** Runs `work` as a span of the active trace, or of `parent`. */
export async function traced<T>(name: string, work: () => Promise<T>, options: SpanOptions = {}): Promise<T> {
  const span = startSpan(name, options);
  if (span === undefined) return await work();
  try {
    return await span.run(work);
  } catch (error) {
    span.fail(error);
    throw error;
  } finally {
    span.end();
  }
}

/** The active span, for another process. */
export function activeTraceparent(): string | undefined {
  if (started === undefined) return undefined;
  const context = started.api.trace.getActiveSpan()?.spanContext();
  return context && traceparentOf(context);
}

/** The same as a header, or a field of a message or record; none without a span. */
export function traceContext(): { traceparent?: string } {
  const traceparent = activeTraceparent();
  return traceparent === undefined ? {} : { traceparent };
}

/** Fields of log lines. */
export function traceIds(): Record<string, string> {
  const context = started?.api.trace.getActiveSpan()?.spanContext();
  return context === undefined ? {} : { trace_id: context.traceId, span_id: context.spanId };
}

export class TraceSpan {
  readonly #api: Api;
  readonly #span: Span;
  readonly #context: Context;

  constructor(api: Api, span: Span, context: Context) {
    this.#api = api;
    this.#span = span;
    this.#context = context;
  }

  get traceparent(): string {
    return traceparentOf(this.#span.spanContext());
  }

  set(attributes: Attributes): void {
    this.#span.setAttributes(attributes);
  }

  /** Marks it as failed. */
  fail(error: unknown): void {
    const message = error instanceof Error ? error.message : String(error);
    this.#span.setStatus({ code: this.#api.SpanStatusCode.ERROR, message });
  }

  end(at?: Date): void {
    this.#span.end(at);
  }

  /** Runs `work` with this span as the active one. */
  run<T>(work: () => T): T {
    return this.#api.context.with(this.#context, work);
  }
}

const TRACEPARENT = /^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$/;

/** Anything that is not a `traceparent` of version 00 is no parent. */
function contextOf(api: Api, traceparent: string): Context {
  const [, traceId = '', spanId = '', flags = ''] = TRACEPARENT.exec(traceparent) ?? [];
  const parent = { traceId, spanId, traceFlags: Number.parseInt(flags, 16) & 1, isRemote: true };
  return api.isSpanContextValid(parent)
    ? api.trace.setSpanContext(api.ROOT_CONTEXT, parent)
    : api.ROOT_CONTEXT;
}

function traceparentOf(context: { traceId: string; spanId: string; traceFlags: number }): string {
  return `00-${context.traceId}-${context.spanId}-0${context.traceFlags & 1}`;
}
