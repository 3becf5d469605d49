/** `rlp cp SRC DST`: files and folders in and out of a sandbox. One side is `VM:PATH`, the other local or `-`. */
import { usageError } from '../cli-error.ts';
import { findSandbox } from '../client/find-sandbox.ts';
import { openService } from '../client/service.ts';
import { EXIT } from '../exit-codes.ts';
import { Spinner } from '../output/spinner.ts';
import { parseCopyEnd } from '../parse/values.ts';
import { type Context, printJson } from '../terminal.ts';
import type { CopyCount } from '../toolbox/archive.ts';
import { copyIn, copyOut, type LocalEnd, type RemoteEnd } from '../toolbox/copy.ts';
import { openToolbox } from '../toolbox/toolbox.ts';

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
  using spinner = new Spinner(context, `copying ${source}`);
  const tell = (count: CopyCount): void => {
    spinner.text = `copying ${source}: ${count.files} files, ${Math.round(count.bytes / 1024 / 1024)} MiB`;
  };
  return direction === 'out'
    ? await copyOut(context, remote, local, spinner, tell)
    : await copyIn(context, remote, local, tell);
}
