/** `rlp fn spawn|map|get`: asynchronous calls of functions. */
import type { InvocationRecord } from '@releap/contract';
import { waitUntilDone } from '@releap/sdk';
import { usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { type CallOptions, headersOf, readBody } from '../input/read-body.ts';
import { milliseconds, table } from '../output/table.ts';
import { openService } from '../service.ts';
import { type Context, print, printJson, show } from '../terminal.ts';

/** Prints the id of the invocation, or waits for its result. */
export async function spawnCall(
  context: Context,
  name: string,
  text: string | undefined,
  options: CallOptions & { wait?: boolean },
): Promise<number> {
  const { bytes, contentType } = await readBody(context, text, options.file);
  const service = openService(context);
  const spawned = await service.patient.spawnInvocation(
    { params: { name }, body: bytes },
    { headers: { 'content-type': contentType, ...headersOf(options.header ?? []) } },
  );
  if (options.wait) return showRecord(context, await waitUntilDone(service, spawned.invocation_id));
  return show(context, spawned, () => spawned.invocation_id);
}

/** Prints the ids of the invocations in the order of the payloads, or waits, and prints each as a line of JSON. */
export async function mapCalls(
  context: Context,
  name: string,
  file: string,
  options: { wait?: boolean },
): Promise<number> {
  const { bytes } = await readBody(context, undefined, file);
  let payloads: unknown;
  try {
    payloads = JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    // The message below.
  }
  if (!Array.isArray(payloads))
    throw usageError(`${file} must be a JSON array, with a payload for each call`);
  const service = openService(context);
  const mapped = await service.patient.mapInvocations({ params: { name }, body: { payloads } });
  if (options.wait !== true) {
    if (context.options.json) printJson(context, mapped);
    else for (const id of mapped.invocation_ids) print(context, id);
    return EXIT.ok;
  }
  const done: InvocationRecord[] = [];
  for (const id of mapped.invocation_ids) {
    const record = await waitUntilDone(service, id);
    done.push(record);
    if (!context.options.json) print(context, JSON.stringify(record));
  }
  if (context.options.json) printJson(context, done);
  return done.every(({ status }) => status === 'succeeded') ? EXIT.ok : EXIT.failed;
}

export async function getCall(
  context: Context,
  id: string,
  { wait = false }: { wait?: boolean },
): Promise<number> {
  const service = openService(context);
  const record = wait
    ? await waitUntilDone(service, id)
    : await service.api.getInvocation({ params: { id } });
  return showRecord(context, record);
}

/** The result on stdout, and what is known of the call on stderr. */
function showRecord(context: Context, record: InvocationRecord): number {
  const { status, version, duration_ms: ms, cold, error, result, done } = record;
  if (context.options.json) printJson(context, record);
  else {
    const row = [
      status,
      version === null ? '-' : `v${version}`,
      milliseconds(ms),
      cold === null ? '-' : cold ? 'cold' : 'warm',
      error ?? '',
    ];
    context.terminal.stderr.write(`${table(['STATUS', 'VERSION', 'DURATION', 'START', 'ERROR'], [row])}\n`);
    if (result !== undefined) print(context, JSON.stringify(result));
  }
  return done && status !== 'succeeded' ? EXIT.failed : EXIT.ok;
}
