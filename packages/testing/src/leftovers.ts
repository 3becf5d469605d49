import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readdir, readFile, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { processStatus } from './processes.ts';

const run = promisify(execFile);

/** What the kernel names of the service with this home have in them. */
export function homeTag(home: string): string {
  return createHash('sha256').update(home).digest('hex').slice(0, 8);
}

/** What the names of its trees of cgroups have in them: of micro-VMs, and of other processes. */
export function cgroupTags(home: string): string[] {
  return [home, ...['helpers', 'volumes', 'images'].map((kind) => join(home, kind))].map(homeTag);
}

/**
 * Everything on this machine that the Releap service with this home has: processes, network namespaces,
 * interfaces, nftables tables, mounts, loop devices and cgroups. Kernel names carry a digest of the home.
 */
export async function leftovers(home: string): Promise<string[]> {
  const tag = homeTag(home);
  const found = await Promise.all([
    processes(home),
    lines('ip', ['netns', 'list'], 'netns', tag),
    lines('ip', ['-o', 'link'], 'interface', tag),
    lines('nft', ['list', 'tables'], 'nft', tag),
    routing(home),
    lines('losetup', ['-a'], 'loop device', home),
    lines('cat', ['/proc/self/mounts'], 'mount', home),
    ...cgroupTags(home).map((one) =>
      lines('find', ['/sys/fs/cgroup', '-type', 'd', '-name', 'releap*'], 'cgroup', one),
    ),
  ]);
  return found.flat().sort();
}

/**
 * What a running service still has of one sandbox (by its bare UUID), logs left out; and what it has that belongs to
 * no sandbox: namespaces, interfaces and cgroups that no record of the service names. Empty once it is wholly gone.
 */
export async function tracesOf(home: string, uuid: string): Promise<string[]> {
  const tag = homeTag(home);
  const runner = join(home, 'runner');
  const folders = [join(runner, 'vms'), join(runner, 'state')];
  // What is there at first is its own folder. The rest takes programs, and a caller that waits looks often.
  const names = (await Promise.all(folders.map((folder) => readdir(folder).catch(() => [])))).flat();
  const own = names.filter((name) => name.includes(uuid));
  if (own.length > 0) return own.map((name) => `file: ${name}`);
  const [ofProcesses, files, cgroups, slots, spaces, links] = await Promise.all([
    processes(uuid),
    lines('find', folders, 'file', uuid),
    lines('find', ['/sys/fs/cgroup', '-type', 'd', '-path', `*/releap-${tag}*`], 'cgroup', uuid),
    slotRecords(join(runner, 'network/slots')),
    lines('ip', ['netns', 'list'], 'netns', tag),
    lines('ip', ['-o', 'link'], 'interface', `rl${tag}v`),
  ]);
  const held = slots.filter(({ text }) => text.includes(uuid)).map(({ index }) => `network slot ${index}`);
  const known = new Set(slots.map(({ index }) => index));
  const stray = [...spaces, ...links].filter((line) => {
    const index = new RegExp(`rl${tag}[-v](\\d+)`).exec(line)?.[1];
    return index !== undefined && !known.has(index);
  });
  return [...ofProcesses, ...files, ...cgroups, ...held, ...stray].sort();
}

async function slotRecords(folder: string): Promise<{ index: string; text: string }[]> {
  const names = (await readdir(folder)).filter((name) => name.endsWith('.json'));
  return await Promise.all(
    names.map(async (name) => ({
      index: name.slice(0, -'.json'.length),
      text: await readFile(join(folder, name), 'utf8').catch(() => ''),
    })),
  );
}

async function lines(tool: string, args: string[], kind: string, mark: string): Promise<string[]> {
  // find(1) complains of what goes while it looks; what it found counts.
  const { stdout } = await run(tool, args).catch((error: { stdout?: string }) => {
    if (tool === 'find' && error.stdout !== undefined) return { stdout: error.stdout };
    throw error;
  });
  return stdout
    .split('\n')
    .filter((line) => line.includes(mark))
    .map((line) => `${kind}: ${line}`);
}

/** Rules and routes of the egress proxy, told by the block of addresses that the service has chosen. */
async function routing(home: string): Promise<string[]> {
  const block = await readFile(join(home, 'runner/network/block'), 'utf8').catch(() => '');
  const [a, b, c] = block.split(/[./]/).map(Number);
  if (a === undefined || b === undefined || c === undefined) return [];
  const number = ((a * 65_536 + b * 256 + c) / 4) % 4096;
  return await lines('ip', ['rule', 'show'], 'routing rule', `fwmark 0x${(0x3000 + number).toString(16)} `);
}

/** Live processes that name `mark` in their command line, environment or working folder. */
async function processes(mark: string): Promise<string[]> {
  const found: string[] = [];
  for (const pid of await readdir('/proc')) {
    if (!/^\d+$/.test(pid) || Number(pid) === process.pid) continue;
    const command = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
    const environment = await readFile(`/proc/${pid}/environ`, 'utf8').catch(() => '');
    const cwd = await readlink(`/proc/${pid}/cwd`).catch(() => '');
    const ours =
      command.includes(mark) || environment.includes(`RELEAP_HOME=${mark}`) || cwd.startsWith(mark);
    if (ours && (await processStatus(Number(pid))) !== undefined)
      found.push(`process ${pid} ${command.replaceAll('\0', ' ').slice(0, 120)}`);
  }
  return found;
}
