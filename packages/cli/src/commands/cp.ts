/** `rlp cp SRC DST`: files and folders in and out of a sandbox. One side is `VM:PATH`, the other local or `-`. */
import { findSandbox, openToolbox } from '@releap/sdk';
import type { CopyCount } from '@releap/sdk/node/archive';
import type { RemoteEnd } from '@releap/sdk/node/copy';
import { usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { Spinner } from '../output/spinner.ts';
import { type LocalEnd, parseCopyEnd } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, printJson } from '../terminal.ts';

/** One side is of the sandbox that `where` names, the other is here. */
export interface Copy {
  direction: 'in' | 'out';
  source: string;
  /** The sandbox or volume. */
  where: string;
  path: string;
  local: LocalEnd;
}

/** @param form of the remote side, for people */
export function readCopy(source: string, target: string, form: string): Copy {
  const from = parseCopyEnd(source);
  const to = parseCopyEnd(target);
  if (from.type === 'sandbox' && to.type !== 'sandbox')
    return { direction: 'out', source, where: from.sandbox, path: from.path, local: to };
  if (to.type === 'sandbox' && from.type !== 'sandbox')
    return { direction: 'in', source, where: to.sandbox, path: to.path, local: from };
  throw usageError(`one of the two must be ${form} and the other a local path or -`);
}

export async function cp(context: Context, source: string, target: string): Promise<number> {
  const copy = readCopy(source, target, 'VM:PATH');
  const service = openService(context);
  const toolbox = await openToolbox(service, await findSandbox(service, copy.where));
  const shown = `${JSON.stringify(copy.path)} in sandbox ${toolbox.sandbox.id}`;
  const count = await runCopy(context, copy, { toolbox, path: copy.path, shown });
  if (context.options.json && !isToStdout(copy)) printJson(context, { vm_id: toolbox.sandbox.id, ...count });
  return EXIT.ok;
}

export const isToStdout = ({ direction, local }: Copy): boolean =>
  direction === 'out' && local.type === 'stdio';

export async function runCopy(
  context: Context,
  { direction, source, local }: Copy,
  remote: RemoteEnd,
): Promise<CopyCount> {
  const { stdin, stdout } = context.terminal;
  using spinner = new Spinner(context, `copying ${source}`);
  // The content is there then.
  if (direction === 'out' && local.type === 'stdio') spinner.stop();
  const tell = (count: CopyCount): void => {
    spinner.text = `copying ${source}: ${count.files} files, ${Math.round(count.bytes / 1024 / 1024)} MiB`;
  };
  const { copyIn, copyOut } = await import('@releap/sdk/node/copy');
  return direction === 'in'
    ? await copyIn(remote, local.type === 'stdio' ? { stream: stdin } : local, tell)
    : await copyOut(remote, local.type === 'stdio' ? { stream: stdout } : local, tell);
}
