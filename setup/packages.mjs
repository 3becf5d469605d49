/**
 * The Debian packages that Releap uses, and the purpose of each. `command` tells that it is there already,
 * from any source.
 *
 * `file` does, for packages without a command. `service` is started by its own package alone, and not wanted.
 *
 * @typedef {{ name: string, why: string, command?: string, file?: string, service?: string }} DebianPackage
 */
import { ARCHITECTURE } from './architecture.mjs';

/** @type {DebianPackage[]} */
export const PACKAGES = [
  { name: 'e2fsprogs', command: 'mkfs.ext4', why: "formats guests' disks" },
  { name: 'squashfs-tools', command: 'mksquashfs', why: 'writes the system disk of guests' },
  { name: 'kmod', command: 'depmod', why: "lists what modules of the guests' kernel need" },
  { name: 'mmdebstrap', command: 'mmdebstrap', why: 'makes the built-in Debian image' },
  {
    name: 'debian-archive-keyring',
    file: '/usr/share/keyrings/debian-archive-keyring.gpg',
    why: 'tells genuine Debian packages from others',
  },
  { name: 'iproute2', command: 'ip', why: 'network namespaces and interfaces' },
  { name: 'nftables', command: 'nft', why: 'the network policy of sandboxes' },
  { name: 'conntrack', command: 'conntrack', why: "forgets a former sandbox's connections" },
  {
    name: 'haproxy',
    command: 'haproxy',
    service: 'haproxy',
    why: 'leads requests to ports of sandboxes',
  },
  { name: 'procps', command: 'sysctl', why: 'forwarding inside a network namespace' },
  { name: 'util-linux', command: 'nsenter', why: 'entering namespaces, dropping privileges' },
  { name: 'mount', command: 'mount', why: 'mounts of network namespaces' },
  { name: 'xz-utils', command: 'xz', why: "unpacks modules of the guests' kernel (Debian 13)" },
  { name: 'zstd', command: 'zstd', why: "unpacks modules of the guests' kernel (Ubuntu)" },
];

/** Of sandboxes with volumes. */
/** @type {DebianPackage[]} */
export const VOLUME_PACKAGES = [
  { name: 'xfsprogs', command: 'mkfs.xfs', why: 'formats the file systems of volumes' },
];

/** Additional packages for the tests: the real counterparts of what Releap talks to. */
/** @type {DebianPackage[]} */
export const TEST_PACKAGES = [
  {
    name: 'docker-registry',
    command: 'docker-registry',
    service: 'docker-registry',
    why: 'a real registry to pull from',
  },
  { name: 'skopeo', command: 'skopeo', why: 'pushes images to that registry' },
  { name: 'qemu-utils', command: 'qemu-img', why: 'a second opinion on disk layers' },
  { name: 'apache2-utils', command: 'htpasswd', why: 'password files for that registry' },
  { name: 'libcap2-bin', command: 'setcap', why: 'files with capabilities to put into layers' },
  { name: 'umoci', command: 'umoci', why: 'a second opinion on merged image layers' },
  {
    name: 'python3-swift',
    file: '/usr/lib/python3/dist-packages/swift/__init__.py',
    why: 'a real S3 server to store in',
  },
  {
    name: 'python3-pip',
    file: '/usr/lib/python3/dist-packages/pip/__init__.py',
    why: 'a client of a private index',
  },
  { name: 'chromium', command: 'chromium', why: 'a real browser to sign in with' },
  { name: 'openssh-client', command: 'ssh', why: 'a real SSH client' },
  { name: 'virtualenv', command: 'virtualenv', why: 'the Python SDK of the compatibility facade' },
  { name: 'pebble', command: 'pebble', why: 'a real ACME server to get certificates from' },
  { name: 'knot', command: 'knotd', service: 'knot', why: 'a real DNS server for its challenges' },
  {
    name: 'pgbouncer',
    command: 'pgbouncer',
    service: 'pgbouncer',
    why: 'a real connection pooler, which control servers refuse',
  },
  { name: 'runc', command: 'runc', why: 'runs the image of the control plane as a container' },
  { name: 'bind9-dnsutils', command: 'nsupdate', why: 'dynamic updates of that DNS server' },
];

/** Additional packages for the measurements. */
/** @type {DebianPackage[]} */
export const BENCH_PACKAGES = [
  { name: 'wrk', command: 'wrk', why: 'HTTP load from a second process' },
  { name: 'runsc', command: 'runsc', why: 'gVisor, to compare with' },
  { name: 'openssh-client', command: 'ssh', why: 'an SSH client' },
  { name: 'nginx-light', command: 'nginx', service: 'nginx', why: 'a proxy, to compare with' },
  { name: 'openssh-server', file: '/usr/sbin/sshd', service: 'ssh', why: 'an SSH server, to compare with' },
];

/** Only without a Go compiler. */
/** @type {DebianPackage} */
export const GO_PACKAGE = { name: 'golang-go', command: 'go', why: 'builds the guest agent' };

/**
 * Where the guests' kernel comes from: a package that depends on the newest one, and what holds its parts. Downloaded and
 * unpacked, never installed.
 * @typedef {{ meta: string, image: RegExp, others: (image: string) => string[] }} KernelSource
 */

/** @type {KernelSource} Debian 12 and 13 */
export const DEBIAN_KERNEL = {
  meta: ARCHITECTURE.kernelPackage,
  image: /Depends: (linux-image-\S+)/,
  others: () => [],
};

/** @type {KernelSource} Ubuntu has the modules of a kernel in a package of their own. */
const UBUNTU_KERNEL = {
  meta: 'linux-image-virtual',
  image: /Depends: (linux-image-\d\S*-generic)/,
  others: (image) => [image.replace(/^linux-image-/, 'linux-modules-')],
};

/** @param {string} osRelease text of /etc/os-release. @returns {KernelSource} */
export function kernelSource(osRelease) {
  const field = (name) => new RegExp(`^${name}=["']?([^"'\n]*)`, 'm').exec(osRelease)?.[1] ?? '';
  return field('ID') === 'ubuntu' || field('ID_LIKE').split(' ').includes('ubuntu')
    ? UBUNTU_KERNEL
    : DEBIAN_KERNEL;
}

/** Downloaded, never installed: the contents of the built-in busybox image. */
export const IMAGE_PACKAGES = ['busybox-static'];
