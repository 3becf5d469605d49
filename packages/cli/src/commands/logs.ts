/** `rlp logs [-f] VM`: what a sandbox's entrypoint, or its console, has printed. */
import { SANDBOX_STATUS_GROUPS } from '@releap/contract/wire';
import { findSandbox, followLog, type RawAnswer } from '@releap/sdk';
import { usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { openService } from '../service.ts';
import { type Context, printJson, writeTo } from '../terminal.ts';

export interface LogsOptions {
  follow?: boolean;
  console?: boolean;
  entrypoint?: boolean;
}

/** Longest pause of a log that is not followed, in milliseconds. */
const IDLE_MS = 60_000;

export async function logs(context: Context, vm: string, options: LogsOptions): Promise<number> {
  if (options.console && options.entrypoint)
    throw usageError('--console and --entrypoint do not go together');
  if (options.follow && context.options.json) throw usageError('--follow and --json do not go together');
  const service = openService(context);
  const { id } = await findSandbox(service, vm);
  const kind = options.console ? 'console' : 'entrypoint';
  const read = (follow: boolean): Promise<RawAnswer> => {
    const { getConsoleLog, getEntrypointLog } = service.patient;
    const input = { params: { id }, query: { follow: follow || undefined } };
    return (kind === 'console' ? getConsoleLog : getEntrypointLog)(input, { idleMs: follow ? 0 : IDLE_MS });
  };
  const write = (chunk: Uint8Array): Promise<void> => writeTo(context.terminal.stdout, chunk);
  const isEnded = async (): Promise<boolean> => {
    const { status } = await service.api.getSandbox({ params: { id } });
    return SANDBOX_STATUS_GROUPS.silent.includes(status);
  };
  if (options.follow) await followLog(context.signal, { read, isEnded, write });
  else if (context.options.json)
    printJson(context, { vm_id: id, log: kind, text: await (await read(false)).text() });
  else for await (const chunk of await read(false)) await write(chunk);
  return EXIT.ok;
}
