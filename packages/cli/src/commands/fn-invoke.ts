/** `rlp fn invoke`: calls a function and prints its answer. */
import { EXIT } from '../exit-codes.ts';
import { type CallOptions, headersOf, readBody } from '../input/read-body.ts';
import { openService } from '../service.ts';
import { type Context, print, printable, printJson, writeTo } from '../terminal.ts';

/** An invocation may take two days; the service ends it. */
const INVOKE_MS = 50 * 3_600_000;

/** Prints what the handler has answered. */
export async function invoke(
  context: Context,
  name: string,
  text: string | undefined,
  options: CallOptions & { include?: boolean },
): Promise<number> {
  const { bytes, contentType } = await readBody(context, text, options.file);
  const service = openService(context);
  const answer = await service.patient.invokeFunction(
    { params: { name }, body: bytes },
    {
      headers: { 'content-type': contentType, ...headersOf(options.header ?? []) },
      timeoutMs: INVOKE_MS,
      idleMs: 0,
    },
  );
  const status = Number(answer.headers.get('x-rlp-fn-status'));
  const { stdout, stderr } = context.terminal;
  if (context.options.json)
    printJson(context, {
      invocation_id: answer.headers.get('x-rlp-invocation-id'),
      status,
      cold: answer.headers.get('x-rlp-cold') === '1',
      headers: Object.fromEntries(answer.headers),
      body: await answer.text(),
    });
  else {
    if (options.include) {
      for (const [header, value] of answer.headers) print(context, `${header}: ${printable(value)}`);
      print(context, '');
    }
    for await (const chunk of answer) await writeTo(stdout, chunk);
    if (status >= 400) stderr.write(`rlp: the handler answered ${status}\n`);
  }
  return status >= 400 ? EXIT.failed : EXIT.ok;
}
