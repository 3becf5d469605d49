/** `rlp edit VM:PATH`: a file of a sandbox in the editor of this machine. */
import { spawn } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, posix } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { downloadFile, findSandbox, openToolbox, statRemote, uploadFile } from '@releap/sdk';
import { CliError, messageOf, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { parseRemotePath } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, remark } from '../terminal.ts';

export async function edit(context: Context, target: string): Promise<number> {
  const { sandbox, path } = parseRemotePath(target);
  const { env } = context.terminal;
  // As git(1) does: an editor may have options.
  const [program = 'vi', ...args] = (env['VISUAL'] || env['EDITOR'] || 'vi').trim().split(/\s+/);
  const service = openService(context);
  const toolbox = await openToolbox(service, await findSandbox(service, sandbox));
  const there = await statRemote(toolbox, path);
  if (there?.directory || path.endsWith('/')) throw usageError(`${path} is a folder: name a file`);
  const before = there === null ? Buffer.alloc(0) : await buffer(await downloadFile(toolbox, path));
  const folder = await mkdtemp(join(tmpdir(), 'rlp-edit-'));
  const local = join(folder, posix.basename(path));
  let keep = false;
  try {
    await writeFile(local, before, { mode: 0o600 });
    await runEditor(program, [...args, local]);
    const after = await readFile(local);
    if (after.equals(before)) {
      remark(context, 'nothing was changed');
      return EXIT.ok;
    }
    keep = true;
    await uploadFile(toolbox, path, after, { bytes: after.length }).catch((error: unknown) => {
      throw new CliError(`${messageOf(error)} (your text is in ${local})`, { cause: error });
    });
    keep = false;
    return EXIT.ok;
  } finally {
    if (!keep) await rm(folder, { recursive: true, force: true });
  }
}

async function runEditor(program: string, args: readonly string[]): Promise<void> {
  const child = spawn(program, args, { stdio: 'inherit' });
  const ended = Promise.withResolvers<number | null>();
  child.once('error', (error) =>
    ended.reject(
      new CliError(`the editor ${program} cannot be started: ${error.message}; set VISUAL or EDITOR`),
    ),
  );
  child.once('close', ended.resolve);
  const code = await ended.promise;
  if (code !== 0)
    throw new CliError(`the editor ${program} ended with ${code ?? 'a signal'}: nothing was written`);
}
