/** `rlp ls VM:PATH`: the files of a sandbox. */
import { posix } from 'node:path';
import type { FileInfo } from '@releap/contract';
import { findSandbox, openToolbox } from '@releap/sdk';
import { EXIT } from '../exit-codes.ts';
import { size, table } from '../output/table.ts';
import { parseRemotePath } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, print, printable, printJson } from '../terminal.ts';

export async function ls(context: Context, target: string, options: { long?: boolean }): Promise<number> {
  const { sandbox, path } = parseRemotePath(target);
  const service = openService(context);
  const { api } = await openToolbox(service, await findSandbox(service, sandbox));
  // With a slash a link to a folder is the folder, as ls(1) has it.
  const info = await api.getFileInfo({ query: { path } });
  const isFolder = info.isDir || path.endsWith('/');
  const found = isFolder
    ? await api.listFiles({ query: { path } })
    : [{ ...info, name: posix.normalize(path) }];
  if (context.options.json) printJson(context, found);
  else if (options.long) {
    const rows = found.map((file) => [
      file.mode,
      file.owner,
      file.group,
      file.isDir ? '-' : size(file.size),
      file.modifiedAt,
      shown(file) + (file.link === undefined ? '' : ` -> ${file.link}`),
    ]);
    print(context, table(['MODE', 'OWNER', 'GROUP', 'SIZE', 'MODIFIED', 'NAME'], rows));
  } else for (const file of found) print(context, printable(shown(file)));
  return EXIT.ok;
}

function shown({ name, isDir }: Pick<FileInfo, 'name' | 'isDir'>): string {
  return isDir ? `${name}/` : name;
}
