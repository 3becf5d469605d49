/** The options of `rlp fn deploy` and `rlp fn config` that may change later, into fields of the API. */
import type { FunctionConfigUpdate } from '@releap/contract';
import { usageError } from '../cli-error.ts';
import { parseCount, parseDuration } from '../parse/values.ts';

export interface BoundOptions {
  timeout?: string;
  scaledown?: string;
  concurrency?: string;
  maxInstances?: string;
}

export function boundsOf({
  timeout,
  scaledown,
  concurrency,
  maxInstances,
}: BoundOptions): FunctionConfigUpdate {
  return {
    ...(timeout === undefined ? {} : { timeout_s: wholeSeconds('--timeout', timeout) }),
    ...(scaledown === undefined ? {} : { scaledown_window_s: wholeSeconds('--scaledown', scaledown) }),
    ...(concurrency === undefined ? {} : { max_concurrency: parseCount('--concurrency', concurrency) }),
    ...(maxInstances === undefined
      ? {}
      : { max_instances: maxInstances === 'none' ? null : parseCount('--max-instances', maxInstances) }),
  };
}

function wholeSeconds(option: string, text: string): number {
  const ms = parseDuration(option, text);
  if (ms % 1000 !== 0)
    throw usageError(`${option} must be whole seconds, as in 30s, but was ${JSON.stringify(text)}`);
  return ms / 1000;
}
