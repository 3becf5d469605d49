/** What the tests of a run leave on the machine: each is a fault of some test, or of what it tests. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const DEADLINE_MS = 30_000;

/** Kernel objects of any Releap on this machine: network namespaces, nftables tables, mounts, loop devices, cgroups. */
export async function kernelObjects(): Promise<ReadonlySet<string>> {
  const lists = await Promise.all([
    lines('network namespace', 'ip', ['netns', 'list'], /./),
    lines('nftables table', 'nft', ['list', 'tables'], /releap/),
    lines('mount', 'cat', ['/proc/self/mounts'], /releap/),
    lines('loop device', 'losetup', ['-a'], /releap/),
    lines('cgroup', 'find', ['/sys/fs/cgroup', '-type', 'd', '-name', 'releap*'], /./),
  ]);
  return new Set(lists.flat());
}

async function lines(kind: string, tool: string, args: string[], wanted: RegExp): Promise<string[]> {
  // A tool that is missing or may not look names nothing; find(1) complains of what goes while it looks.
  const { stdout } = await promisify(execFile)(tool, args, { timeout: DEADLINE_MS }).catch(
    (error: { stdout?: string }) => ({ stdout: error.stdout ?? '' }),
  );
  return stdout
    .split('\n')
    .filter((line) => line !== '' && wanted.test(line))
    .map((line) => `${kind} ${line}`);
}
