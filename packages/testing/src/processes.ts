import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';

export type Role = 'control' | 'runner' | 'gateway' | 'postgres';

/** What /proc says of one process; undefined when it is gone, or dead and only not yet reaped. */
export async function processStatus(pid: number): Promise<Map<string, string> | undefined> {
  const text = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
  const fields = new Map<string, string>();
  for (const line of text.split('\n')) {
    const at = line.indexOf(':');
    if (at > 0) fields.set(line.slice(0, at), line.slice(at + 1).trim());
  }
  const state = fields.get('State') ?? 'X';
  return state.startsWith('Z') || state.startsWith('X') ? undefined : fields;
}

/** Pids of the parts of the service with this home, those that live. */
export async function partPids(home: string): Promise<Partial<Record<Role, number>>> {
  const found: Partial<Record<Role, number>> = {};
  const candidates = new Map<number, { role: Role; parent: number }>();
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const command = await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '');
    const role = /\/main\.(?:ts|mjs)\0(control|runner|gateway)\0/.exec(command)?.[1];
    if (role === undefined) continue;
    const environment = await readFile(`/proc/${name}/environ`, 'utf8').catch(() => '');
    if (!environment.includes(`RELEAP_HOME=${home}\0`)) continue;
    const parent = Number((await processStatus(Number(name)))?.get('PPid'));
    candidates.set(Number(name), { role: role as Role, parent });
  }
  // A child that a part has just forked looks like the part itself until it is another program.
  for (const [pid, { role, parent }] of candidates) if (!candidates.has(parent)) found[role] = pid;
  const pidFile = await readFile(join(home, 'postgres/data/postmaster.pid'), 'utf8').catch(() => '');
  const postmaster = Number.parseInt(pidFile, 10);
  if (postmaster > 0 && (await processStatus(postmaster))?.get('Name') === 'postgres') {
    found.postgres = postmaster;
  }
  return found;
}

/** The VMM of a sandbox, by its bare UUID; undefined when it has none that lives. */
export async function vmmPid(home: string, uuid: string): Promise<number | undefined> {
  const text = await readFile(join(home, 'runner/vms', uuid, 'vm.json'), 'utf8').catch(() => '{}');
  const pid = (JSON.parse(text) as { process?: { pid: number } }).process?.pid;
  if (pid === undefined) return undefined;
  if ((await processStatus(pid)) === undefined) return undefined;
  // Its name is that of the loader which starts it with libraries of its own.
  const command = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
  return command.includes('/qemu-system-') ? pid : undefined;
}

/** Also those that have ended and have not been reaped. */
export async function childrenOf(parent: number): Promise<number[]> {
  const found: number[] = [];
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const text = await readFile(`/proc/${name}/stat`, 'latin1').catch(() => '');
    if (Number(text.slice(text.lastIndexOf(')') + 2).split(' ')[1]) === parent) found.push(Number(name));
  }
  return found;
}
