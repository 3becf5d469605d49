import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readdir, readFile, readlink } from 'node:fs/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);

/**
 * Everything on this machine that the Releap service with this home has: processes, network namespaces,
 * interfaces, nftables tables, mounts, loop devices and cgroups. Kernel names carry a digest of the home.
 */
export async function leftovers(home: string): Promise<string[]> {
  const tag = createHash('sha256').update(home).digest('hex').slice(0, 8);
  const found = await Promise.all([
    processes(home),
    lines('ip', ['netns', 'list'], 'netns', tag),
    lines('ip', ['-o', 'link'], 'interface', tag),
    lines('nft', ['list', 'tables'], 'nft', tag),
    lines('losetup', ['-a'], 'loop device', home),
    lines('cat', ['/proc/self/mounts'], 'mount', home),
    lines('find', ['/sys/fs/cgroup', '-type', 'd', '-name', 'releap*'], 'cgroup', tag),
  ]);
  return found.flat().sort();
}

async function lines(tool: string, args: string[], kind: string, mark: string): Promise<string[]> {
  const { stdout } = await run(tool, args);
  return stdout
    .split('\n')
    .filter((line) => line.includes(mark))
    .map((line) => `${kind}: ${line}`);
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
