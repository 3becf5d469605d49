/** `rlp ssh-config`: blocks for ~/.ssh/config, so that `ssh NAME` and the remote modes of editors reach sandboxes. */
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { SandboxRecord } from '@releap/contract';
import { findSandbox, type Service } from '@releap/sdk';
import { CliError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { openService } from '../service.ts';
import { clientOptions } from '../ssh/client-options.ts';
import { type Context, print, printJson, remark, show } from '../terminal.ts';

/** `ssh NAME.releap` reaches any sandbox. */
export const SSH_SUFFIX = '.releap';
const FILE = 'releap.config';
/** Names that mean themselves in ssh_config(5) and in a shell. */
const PLAIN = /^[A-Za-z0-9][A-Za-z0-9._-]{0,200}$/;

export interface SshConfigOptions {
  write?: boolean;
}

export async function sshConfig(
  context: Context,
  vms: readonly string[],
  { write }: SshConfigOptions,
): Promise<number> {
  const service = openService(context);
  const sandboxes = vms.length === 0 ? await named(service) : await chosen(service, vms);
  const regions = await service.regions();
  const text = [
    '# Written by rlp ssh-config.\n',
    ...(await Promise.all(
      sandboxes.map(async ({ name, region }) =>
        block(name, await clientOptions(context, service, region, name)),
      ),
    )),
    ...(regions.length === 1 && regions[0] !== undefined
      ? [block(`*${SSH_SUFFIX}`, await clientOptions(context, service, regions[0].id, '%n'))]
      : []),
  ].join('\n');
  if (write !== true) {
    return show(context, { config: text }, () => text.trimEnd());
  }
  const folder = join(context.terminal.env['HOME'] || homedir(), '.ssh');
  await writeConfig(folder, text);
  if (context.options.json) printJson(context, { file: join(folder, FILE), config: text });
  else for (const { name } of sandboxes) print(context, name);
  remark(context, `ssh NAME works for these, ssh NAME${SSH_SUFFIX} for every sandbox`);
  return EXIT.ok;
}

/** Those that run or can be started, by names that are theirs alone. */
async function named(service: Service): Promise<SandboxRecord[]> {
  const byName = new Map<string, SandboxRecord[]>();
  for await (const sandbox of service.sandboxes()) {
    if (['deleted', 'deleting', 'failed'].includes(sandbox.status) || !PLAIN.test(sandbox.name)) continue;
    byName.set(sandbox.name, [...(byName.get(sandbox.name) ?? []), sandbox]);
  }
  return [...byName.values()].filter((same) => same.length === 1).flat();
}

async function chosen(service: Service, vms: readonly string[]): Promise<SandboxRecord[]> {
  const found = await Promise.all(vms.map((vm) => findSandbox(service, vm)));
  for (const { name } of found)
    if (!PLAIN.test(name)) throw new CliError(`${JSON.stringify(name)} cannot be the name of a host in ssh`);
  return found;
}

function block(host: string, options: readonly (readonly [string, string])[]): string {
  return `Host ${host}\n${options.map(([keyword, value]) => `  ${keyword} ${value}\n`).join('')}`;
}

/** A file of its own, which the user's configuration includes: first, as the first value of an option counts. */
async function writeConfig(folder: string, text: string): Promise<void> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  await replace(join(folder, FILE), text);
  const config = join(folder, 'config');
  const before = await readFile(config, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return '';
    throw error;
  });
  if (new RegExp(`^\\s*Include\\s+"?${FILE.replace('.', '\\.')}"?\\s*$`, 'im').test(before)) return;
  await replace(config, `Include ${FILE}\n\n${before}`);
}

async function replace(file: string, text: string): Promise<void> {
  const partial = `${file}.${process.pid}.partial`;
  await writeFile(partial, text, { mode: 0o600 });
  await rename(partial, file);
}
