import { spawn, type ChildProcess } from 'node:child_process';
import path from 'node:path';
import type { Binaries } from './binaries.ts';

/**
 * Owner of the server process and its files when this process is root, as which PostgreSQL refuses to run. No user has
 * this uid, and it is outside the ranges that Debian and systemd allocate.
 */
const POSTGRES_UID = 0x6fff_0000;

/** Empty folders of every Debian; one of them becomes the mount point of the server process. */
const MOUNT_POINTS = ['/mnt', '/media', '/srv', '/opt'];

/**
 * A mount namespace in which the unprivileged process reaches its data, its socket and its binaries, although
 * the folders above them (a home, a checkout below /root) may be closed to it. The mounts end with the process.
 * initdb insists on a user name for its uid: the namespace sees an /etc/passwd that has one.
 * The death of its parent (--pdeathsig) requests a fast shutdown.
 * The namespace begins as a copy of the machine's. File systems of volumes leave it: otherwise they would stay mounted, and keep
 * their loop devices, after the runner has unmounted them.
 */
const ENTER_ROOM = `
set -eu
room=$1 data=$2 socket=$3 native=$4 uid=$5; shift 5
while read -r _ place _; do
  case "$place" in */runner/volumes/*/mnt) umount -l "$place" || true ;; esac
done < /proc/self/mounts
mount -t tmpfs -o mode=0755,size=1m,nosuid,nodev releap "$room"
mkdir "$room/data" "$room/socket" "$room/native"
mount --bind "$data" "$room/data"
mount --bind "$socket" "$room/socket"
if [ -n "$native" ]; then
  mount --bind "$native" "$room/native"
  mount -o remount,bind,ro,nosuid,nodev "$room/native"
fi
printf 'root:x:0:0::/:/bin/false\\nreleap-postgres:x:%s:%s::/:/bin/false\\n' "$uid" "$uid" > "$room/passwd"
mount --bind "$room/passwd" /etc/passwd
cd /
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
  --pdeathsig INT -- "$@"
`;

export interface Folders {
  data: string;
  socket: string;
}

/** Paths of its folders in the process's mount namespace. */
export interface View extends Folders {
  /** Owner of its files; absent for the present user. */
  owner?: number;
  start(program: 'postgres' | 'initdb', args: string[]): ChildProcess;
}

/** Prepares running programs of one PostgreSQL on one pair of folders: in a mount namespace as root, else directly. */
export function viewOf(binaries: Binaries, folders: Folders): View {
  const options = {
    stdio: ['ignore', 'pipe', 'pipe'] as ['ignore', 'pipe', 'pipe'],
    // Its own session: Ctrl-C in the terminal is for the supervisor, which stops things in order.
    detached: true,
    cwd: '/',
    env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C', TZ: 'UTC' },
  };
  if (process.getuid?.() !== 0) {
    return {
      ...folders,
      start: (program, args) =>
        spawn('setpriv', ['--pdeathsig', 'INT', '--', path.join(binaries.bin, program), ...args], options),
    };
  }
  const taken = [folders.data, folders.socket, ...(binaries.root === undefined ? [] : [binaries.root])];
  const room = MOUNT_POINTS.find(
    (candidate) => !taken.some((folder) => `${folder}/`.startsWith(`${candidate}/`)),
  );
  if (room === undefined)
    throw new Error(`no folder for PostgreSQL's mounts: all of ${MOUNT_POINTS.join(', ')} are in use`);
  const bin =
    binaries.root === undefined
      ? binaries.bin
      : path.join(room, 'native', path.relative(binaries.root, binaries.bin));
  return {
    data: path.join(room, 'data'),
    socket: path.join(room, 'socket'),
    owner: POSTGRES_UID,
    start: (program, args) => {
      const namespace = ['--mount', '--propagation', 'private', '--'];
      const places = [room, folders.data, folders.socket, binaries.root ?? '', String(POSTGRES_UID)];
      const shell = ['/bin/sh', '-c', ENTER_ROOM, 'releap-postgres', ...places];
      return spawn('unshare', [...namespace, ...shell, path.join(bin, program), ...args], options);
    },
  };
}
