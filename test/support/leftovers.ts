import { execFile } from 'node:child_process';
import { readdir, readFile, readlink } from 'node:fs/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);

/**
 * Everything on this machine that a Releap service with this home could have left: processes, network
 * namespaces, interfaces, nftables tables, mounts, loop devices and cgroups. Compare before and after.
 */
export async function leftovers(home: string): Promise<string[]> {
  const found = await Promise.all([
    processes(home),
    lines('ip', ['netns', 'list'], /^(rl\S*)/, 'netns'),
    lines('ip', ['-o', 'link'], /^\d+: (rl[^@:]*)/, 'interface'),
    lines('nft', ['list', 'tables'], /^table (\S+ (?:rl|releap)\S*)/, 'nft table'),
    lines('losetup', ['-a'], /^(.*)$/, 'loop device').then((all) => all.filter((line) => line.includes(home))),
    mounts(home),
    cgroups(),
  ]);
  return found.flat().sort();
}

async function lines(tool: string, args: string[], pattern: RegExp, kind: string): Promise<string[]> {
  const { stdout } = await run(tool, args);
  return stdout.split('\n').flatMap((line) => {
    const found = pattern.exec(line);
    return found ? [`${kind} ${found[1]}`] : [];
  });
}

async function processes(home: string): Promise<string[]> {
  const found: string[] = [];
  for (const pid of await readdir('/proc')) {
    if (!/^\d+$/.test(pid) || Number(pid) === process.pid) continue;
    const command = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
    const environment = await readFile(`/proc/${pid}/environ`, 'utf8').catch(() => '');
    const cwd = await readlink(`/proc/${pid}/cwd`).catch(() => '');
    const ours =
      command.includes(home) || environment.includes(`RELEAP_HOME=${home}`) || cwd.startsWith(home);
    if (ours) found.push(`process ${pid} ${command.replaceAll('\0', ' ').slice(0, 120)}`);
  }
  return found;
}

async function mounts(home: string): Promise<string[]> {
  const table = await readFile('/proc/self/mounts', 'utf8');
  return table
    .split('\n')
    .filter((line) => line.includes(home))
    .map((line) => `mount ${line}`);
}

async function cgroups(): Promise<string[]> {
  const { stdout } = await run('find', ['/sys/fs/cgroup', '-type', 'd', '-name', 'releap*']);
  return stdout.split('\n').flatMap((line) => (line === '' ? [] : [`cgroup ${line}`]));
}
