import { pino, type LoggerOptions } from 'pino';

/** Longest property of an error that is logged, in characters. Messages and stacks are not cut. */
const TEXT_MAX = 1_000;
const AGGREGATED_MAX = 8;
/** PostgreSQL quotes values of the row in these: tenants' data, which must not be logged. */
const ROW_VALUES = new Set(['detail', 'where', 'internalQuery']);

/** The common options of all loggers of the service. */
export function loggerOptions(level: string): LoggerOptions {
  return { level, base: null, serializers: { err: serializeError } };
}

/**
 * Serializes an error: type, message and stack with those of its causes, and properties with plain values (`code`,
 * `severity`, `exitCode`). Objects are left out: `pg` attaches its client, with the text of every prepared statement,
 * and other libraries attach a request.
 */
function serializeError(error: unknown): unknown {
  if (!(error instanceof Error)) return error;
  const { type, message, stack, aggregateErrors, ...rest } = pino.stdSerializers.err(error);
  const plain: Record<string, string | number | boolean> = {};
  for (const [key, value] of Object.entries(rest)) {
    if (ROW_VALUES.has(key)) continue;
    if (typeof value === 'string') plain[key] = value.slice(0, TEXT_MAX);
    if (typeof value === 'number' || typeof value === 'boolean') plain[key] = value;
  }
  return {
    type,
    message,
    stack,
    ...(aggregateErrors !== undefined && {
      aggregateErrors: (error as AggregateError).errors.slice(0, AGGREGATED_MAX).map(serializeError),
    }),
    ...plain,
  };
}
