/** Removes what a run leaves on the machine when it is killed, or when one of its tests does not clean up. */
import { execFile } from 'node:child_process';
import { readdir, readFile, rm, rmdir } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { setTimeout as sleep } from 'node:timers/promises';
import { cgroupTags } from '../leftovers.ts';
import { removePostgresOf, removePostgresOfDead } from '../postgres-leftovers.ts';
import { deadRunFolders, type RunFolder } from './run-folder.ts';
import { ownerOf } from './run-owner.ts';

/** In the environment of every process that a run starts, but for VMMs; its value is the owner of the run. */
export const RUN_VARIABLE = 'RELEAP_TEST_RUN';
const DEADLINE_MS = 30_000;
const KILL_ROUNDS = 20;
/** A cgroup can be removed once the kernel is done with the processes that were killed in it. */
const CGROUP_TRIES = 100;
const CGROUP_PAUSE_MS = 50;

/** Removes what runs have left whose process has been killed. */
export async function removeDeadRuns(): Promise<void> {
  for (const folder of await deadRunFolders()) await removeRun(folder);
  await removePostgresOfDead();
  await removeNamespacesOfDead();
}

/** Tests name namespaces that they make themselves after their process. */
async function removeNamespacesOfDead(): Promise<void> {
  for (const line of (await output('ip', ['netns', 'list'])).split('\n')) {
    const [name, pid] = /^(?:[dt]|releap-test-)(\d+)-\w+/.exec(line) ?? [];
    if (name !== undefined && ownerOf(Number(pid)) === undefined)
      await output('ip', ['netns', 'delete', name]);
  }
}

/** Removes everything of a run that has ended, or that is about to: its processes, kernel objects and files. */
export async function removeRun(folder: RunFolder): Promise<void> {
  // Before and after: who disposes of a service that is killed removes its home, by which its kernel objects are known.
  const before = await tagsBelow(folder.path);
  // One that was just being started is found the next time.
  for (let round = 0; round < KILL_ROUNDS; round++)
    if ((await killProcessesOf(folder.owner)).length === 0) break;
  const tags = [...new Set([...before, ...(await tagsBelow(folder.path))])];
  await removeCgroups(tags);
  await removeNetworks(tags);
  await unmountBelow(folder.path);
  await removePostgresOf(folder.owner);
  await rm(folder.path, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
}

/** Kills the processes of a run, but for this one. @returns what they were */
export async function killProcessesOf(owner: string): Promise<string[]> {
  const killed: string[] = [];
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name) || Number(name) === process.pid) continue;
    const environ = await readFile(`/proc/${name}/environ`, 'latin1').catch(() => '');
    if (!environ.split('\0').includes(`${RUN_VARIABLE}=${owner}`)) continue;
    const command = await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '');
    killed.push(`process ${name} ${command.replaceAll('\0', ' ').slice(0, 200)}`);
    kill(Number(name));
  }
  return killed;
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // It has ended meanwhile.
  }
}

/** What kernel objects of services have in their names whose homes lie in this folder, or in a folder in it. */
async function tagsBelow(folder: string): Promise<string[]> {
  const homes: string[] = [];
  for (const one of await foldersIn(folder)) homes.push(one, ...(await foldersIn(one)));
  return homes.flatMap(cgroupTags);
}

async function foldersIn(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
  return entries.filter((entry) => entry.isDirectory()).map(({ name }) => path.join(folder, name));
}

async function removeCgroups(tags: readonly string[]): Promise<void> {
  const ours = (folder: string): boolean => tags.some((tag) => folder.includes(`/releap-${tag}`));
  // Children before parents.
  const folders = (await output('find', ['/sys/fs/cgroup', '-depth', '-type', 'd', '-path', '*/releap-*']))
    .split('\n')
    .filter(ours);
  for (const folder of folders) {
    const pids = await readFile(path.join(folder, 'cgroup.procs'), 'utf8').catch(() => '');
    for (const pid of pids.split('\n')) if (Number(pid) > 0) kill(Number(pid));
  }
  for (const folder of folders) {
    // systemd keeps a unit whose cgroup is removed beneath it.
    if (folder.endsWith('.service')) await output('systemctl', ['stop', path.basename(folder)]);
    for (let tries = 0; tries < CGROUP_TRIES; tries++) {
      const busy = await rmdir(folder).then(
        () => false,
        (error: NodeJS.ErrnoException) => error.code === 'EBUSY',
      );
      if (!busy) break;
      await sleep(CGROUP_PAUSE_MS);
    }
  }
}

async function removeNetworks(tags: readonly string[]): Promise<void> {
  const ours = (name: string): boolean => tags.some((tag) => name.startsWith(`rl${tag}`));
  for (const line of (await output('ip', ['netns', 'list'])).split('\n')) {
    const name = line.split(' ', 1)[0] ?? '';
    if (ours(name)) await output('ip', ['netns', 'delete', name]);
  }
  for (const line of (await output('ip', ['-o', 'link'])).split('\n')) {
    const name = /^\d+: ([^:@]+)/.exec(line)?.[1] ?? '';
    if (ours(name)) await output('ip', ['link', 'delete', name]);
  }
  for (const line of (await output('nft', ['list', 'tables'])).split('\n')) {
    const [, family, name] = line.split(' ');
    if (family !== undefined && tags.some((tag) => name === `releap_${tag}`))
      await output('nft', ['delete', 'table', family, name ?? '']);
  }
}

async function unmountBelow(folder: string): Promise<void> {
  const targets = (await readFile('/proc/self/mounts', 'utf8'))
    .split('\n')
    .map((line) => line.split(' ')[1] ?? '')
    .filter((target) => target.startsWith(`${folder}/`));
  for (const target of targets.reverse()) await output('umount', ['--lazy', target]);
  for (const line of (await output('losetup', ['-a'])).split('\n'))
    if (line.includes(`(${folder}/`)) await output('losetup', ['-d', line.split(':', 1)[0] ?? '']);
}

/** What a tool says. One that is missing or refuses says nothing: what it would have removed stays. */
async function output(tool: string, args: string[]): Promise<string> {
  const { stdout } = await promisify(execFile)(tool, args, { timeout: DEADLINE_MS }).catch(
    (error: { stdout?: string }) => ({ stdout: error.stdout ?? '' }),
  );
  return stdout;
}
