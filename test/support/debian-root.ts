/** Root folders of Debian machines that have just been installed, with the files of this repository as a clone has them. */
import { type ChildProcess, execFileSync, spawn, type StdioOptions } from 'node:child_process';
import { copyFile, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { REPO } from '@releap/testing/service';

const CERTIFICATES = '/etc/ssl/certs/ca-certificates.crt';
/** Names of the repository's files, each ended by a NUL. */
const LIST = 'releap.list';

/**
 * Installs Debian, and takes over the network configuration of this machine.
 * @param root empty, or absent
 * @param packages besides apt and what it needs
 */
export async function installDebian(root: string, suite: string, packages: readonly string[]): Promise<void> {
  const wanted = ['--variant=apt', `--include=${packages.join(',')}`];
  const options = ['--aptopt=APT::Install-Recommends "false"', '--dpkgopt=force-unsafe-io'];
  execFileSync('mmdebstrap', [...wanted, ...options, suite, root], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  await mkdir(join(root, dirname(CERTIFICATES)), { recursive: true });
  await copyFile(CERTIFICATES, join(root, CERTIFICATES));
  await useResolver(root);
}

/** It asks the name servers of this machine. */
export async function useResolver(root: string): Promise<void> {
  await copyFile('/etc/resolv.conf', join(root, 'etc/resolv.conf'));
}

/** Has the files of this repository in `/releap`, and of an earlier copy only what git does not know. */
export async function copyRepository(root: string): Promise<void> {
  const list = join(root, LIST);
  const target = join(root, 'releap');
  const before = await readFile(list, 'utf8').catch(() => '');
  const known = ['ls-files', '-z', '--cached', '--others', '--exclude-standard'];
  const names = execFileSync('git', known, { cwd: REPO, encoding: 'utf8', maxBuffer: 2 ** 26 });
  const present = new Set(names.split('\0'));
  for (const name of before.split('\0'))
    if (!present.has(name)) await rm(join(target, name), { force: true });
  await mkdir(target, { recursive: true });
  await writeFile(list, names);
  const archive = join(root, 'releap.tar');
  const read = ['-C', REPO, '--null', '-T', list, '--ignore-failed-read', '-cf', archive];
  execFileSync('tar', read);
  execFileSync('tar', ['-xf', archive, '-C', target]);
  await rm(archive);
}

/**
 * Runs a command in it, with mounts, processes, IPC and a host name of its own; all of it ends with the process.
 * @param options.namespace network namespace, by name; that of this process by default
 */
export function enterRoot(
  root: string,
  command: readonly string[],
  options: { env?: Readonly<Record<string, string>>; namespace?: string; stdio: StdioOptions },
): ChildProcess {
  const env = {
    PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
    HOME: '/root',
    LANG: 'C.UTF-8',
    NODE_EXTRA_CA_CERTS: CERTIFICATES,
    ...options.env,
  };
  const script = `set -e; mount --bind "$0" "$0"; cd "$0"
    mount --rbind /dev dev; mount -t sysfs sysfs sys; mount --rbind /sys/fs/cgroup sys/fs/cgroup; mount -t proc proc proc; mount -t tmpfs tmpfs run; mkdir run/lock
    exec chroot . /usr/bin/env -i "$@"`;
  const apart = ['--mount', '--pid', '--ipc', '--uts', '--fork', '--kill-child', '--propagation', 'private'];
  const variables = Object.entries(env).map(([name, value]) => `${name}=${value}`);
  const inside = ['unshare', ...apart, 'sh', '-c', script, root, ...variables, ...command];
  const { namespace } = options;
  const [program = '', ...args] =
    namespace === undefined ? inside : ['nsenter', `--net=/run/netns/${namespace}`, '--', ...inside];
  return spawn(program, args, { stdio: options.stdio });
}
