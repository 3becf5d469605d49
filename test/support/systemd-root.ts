/** Boots the systemd of a root folder (`installDebian`), as a container does, to run a script as one of its units. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

/** What a root needs for it. */
export const SYSTEMD_PACKAGES = ['systemd', 'systemd-sysv', 'dbus', 'procps', 'mount'];
const UNIT = 'walk.service';
const LOG = 'walk.log';
/** They would change this machine, whose kernel it shares, or open its console. */
const MASKED = [
  'console-getty.service',
  'getty.target',
  'systemd-modules-load.service',
  'systemd-random-seed.service',
  'systemd-sysctl.service',
  'systemd-timesyncd.service',
  'systemd-tmpfiles-setup-dev.service',
  'systemd-udevd.service',
];
/** In a control group of its own: systemd takes that for the top of the hierarchy. */
const OUTSIDE = `set -e
  for folder in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
    [ -e "$folder/cgroup.procs" ] || continue
    mkdir -p "$folder/$0"
    echo $$ >"$folder/$0/cgroup.procs"
  done
  exec "$@"`;
const INSIDE = `set -e
  mount --bind "$0" "$0"; cd "$0"
  mount -t tmpfs -o mode=755 dev dev
  for node in null zero full random urandom tty kvm loop-control fuse; do
    [ -e "/dev/$node" ] && touch "dev/$node" && mount --bind "/dev/$node" "dev/$node"
  done
  mkdir dev/shm dev/pts dev/net
  touch dev/net/tun; mount --bind /dev/net/tun dev/net/tun
  mount -t tmpfs shm dev/shm; mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts; ln -s pts/ptmx dev/ptmx
  mount -t sysfs sysfs sys
  if [ -e /sys/fs/cgroup/cgroup.procs ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
  else
    mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
    for folder in /sys/fs/cgroup/*; do
      name=\${folder##*/}
      mkdir "sys/fs/cgroup/$name"
      case $name in
        unified) mount -t cgroup2 cgroup2 sys/fs/cgroup/unified ;;
        systemd) mount -t cgroup -o none,name=systemd systemd sys/fs/cgroup/systemd ;;
        *) mount -t cgroup -o "$name" "$name" "sys/fs/cgroup/$name" ;;
      esac
    done
  fi
  mount -t proc proc proc; mount -t tmpfs -o mode=755 run run
  exec chroot . /usr/bin/env -i container=releap /lib/systemd/systemd --unit=${UNIT} --show-status=no --log-target=null`;

/**
 * Boots it, runs the script with `sh`, and ends when the script does.
 * @param options.namespace network namespace, by name
 * @returns its exit code, 0 or 1, and the end of what it has printed
 */
export async function runUnderSystemd(
  root: string,
  script: string,
  options: { env: Readonly<Record<string, string>>; namespace: string },
): Promise<{ code: number | null; output: string }> {
  const units = join(root, 'etc/systemd/system');
  await mkdir(units, { recursive: true });
  for (const name of MASKED) await symlink('/dev/null', join(units, name));
  const variables = Object.entries(options.env).map(([name, value]) => `Environment=${name}=${value}\n`);
  await writeFile(
    join(units, UNIT),
    `[Unit]
Requires=basic.target
After=basic.target
SuccessAction=exit-force
FailureAction=exit-force
SuccessActionExitStatus=0
FailureActionExitStatus=1
[Service]
Type=oneshot
Environment=HOME=/root LANG=C.UTF-8
${variables.join('')}ExecStart=/bin/sh /walk.sh
StandardOutput=file:/${LOG}
StandardError=inherit
TimeoutStartSec=infinity
`,
  );
  await writeFile(join(root, 'walk.sh'), script);
  const name = `releap-test-${process.pid}`;
  const apart = ['--mount', '--pid', '--ipc', '--uts', '--cgroup', '--fork', '--kill-child'];
  const boot = ['unshare', ...apart, '--propagation', 'private', 'sh', '-c', INSIDE, root];
  const inNetwork = ['nsenter', `--net=/run/netns/${options.namespace}`, '--', ...boot];
  const child = spawn('sh', ['-c', OUTSIDE, name, ...inNetwork], { stdio: ['ignore', 'inherit', 'inherit'] });
  try {
    const [code] = (await once(child, 'close')) as [number | null];
    return { code, output: (await readFile(join(root, LOG), 'utf8').catch(() => '')).slice(-30_000) };
  } finally {
    child.kill('SIGKILL');
    await removeGroups(name);
  }
}

async function removeGroups(name: string): Promise<void> {
  for (const top of ['/sys/fs/cgroup', '/sys/fs/cgroup/systemd', '/sys/fs/cgroup/unified'])
    await promisify(execFile)('find', [join(top, name), '-depth', '-type', 'd', '-delete']).catch(
      () => undefined,
    );
}
