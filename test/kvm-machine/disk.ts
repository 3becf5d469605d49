/**
 * Makes the disk of a Debian machine with the files of this repository and all that set-up installs, or brings it up to date:
 * `node disk.ts FOLDER MOUNTPOINT`. FOLDER then has `disk.raw`, `vmlinuz` and `initrd.img`.
 *
 * Runs in a mount namespace of its own: when it ends, however it does, its mounts end and the kernel releases the loop device.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { copyFile, mkdir, open, readFile, readdir, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { copyRepository, enterRoot, installDebian, useResolver } from '../support/debian-root.ts';

const SUITE = 'trixie';
/** What a machine has, and Node and npm as the README asks for. */
const PACKAGES = (
  'systemd,systemd-sysv,dbus,udev,linux-image-cloud-amd64,initramfs-tools,zstd,mount,iproute2,kmod,procps,' +
  'nodejs,npm'
).split(',');
/** Sparse. */
const DISK_BYTES = 24 * 1024 ** 3;
const RESOLVER = 'etc/resolv.conf';

/** The port through which the machine gets commands for its shell, and answers: test/kvm-machine/machine.ts. */
const COMMANDS = '/dev/virtio-ports/releap.commands';
const FILES: Readonly<Record<string, string>> = {
  'etc/hostname': 'kvm-machine\n',
  'etc/hosts': '127.0.0.1 localhost kvm-machine\n',
  'etc/fstab': '/dev/vda / xfs defaults,noatime 0 0\n',
  'etc/modules-load.d/kvm.conf': 'kvm_amd\n',
  'etc/systemd/journald.conf.d/volatile.conf': '[Journal]\nStorage=volatile\n',
  'etc/systemd/network/10-ethernet.network': '[Match]\nName=en*\n[Network]\nDHCP=ipv4\n',
  // Everything takes long.
  'etc/systemd/system.conf.d/patience.conf':
    '[Manager]\nDefaultTimeoutStartSec=infinity\nDefaultTimeoutStopSec=infinity\nDefaultDeviceTimeoutSec=infinity\n',
  // A port can be opened once.
  'etc/systemd/system/commands.service': `[Unit]
Description=Shell of the test
[Service]
Environment=HOME=/root LANG=C.UTF-8
ExecStart=/bin/sh -c 'exec /bin/sh <>${COMMANDS} >&0 2>&1'
[Install]
WantedBy=multi-user.target
`,
};
/** /tmp would be in memory, and the rest needs a network or takes time. */
const MASKED = [
  'tmp.mount',
  'apt-daily.timer',
  'apt-daily-upgrade.timer',
  'e2scrub_all.timer',
  'haproxy.service',
];
const ENABLED = ['commands.service'];
/** What an installed disk depends on. A disk of another one is made anew. */
const VERSION = createHash('sha256')
  .update(JSON.stringify([SUITE, PACKAGES, DISK_BYTES, FILES, MASKED, ENABLED]))
  .digest('hex');

const [folder = '', root = ''] = process.argv.slice(2);
const disk = join(folder, 'disk.raw');
const versionFile = join(folder, 'version');

if ((await readFile(versionFile, 'utf8').catch(() => '')) !== VERSION) await makeDisk();
await onDisk(disk, async () => {
  progress('copying the repository');
  await copyRepository(root);
  await useResolver(root);
  progress('set-up in it');
  const setUp = enterRoot(root, ['sh', '-c', 'cd /releap && npm run setup'], {
    stdio: ['ignore', 'inherit', 'inherit'],
  });
  const [code] = (await once(setUp, 'close')) as [number | null];
  if (code !== 0) throw new Error(`set-up in the machine ended with ${code}`);
  // The name server of its network card (`-netdev user`).
  await writeFile(join(root, RESOLVER), 'nameserver 10.0.2.3\n');
  for (const name of ['vmlinuz', 'initrd.img']) {
    const file = (await readdir(join(root, 'boot')))
      .filter((entry) => entry.startsWith(`${name}-`))
      .sort()
      .at(-1);
    if (file === undefined) throw new Error(`the machine has no ${name}`);
    await copyFile(join(root, 'boot', file), join(folder, name));
  }
});

async function makeDisk(): Promise<void> {
  await rm(versionFile, { force: true });
  await rm(disk, { force: true });
  const partial = `${disk}.partial`;
  await rm(partial, { force: true });
  await using file = await open(partial, 'wx');
  await file.truncate(DISK_BYTES);
  execFileSync('mkfs.xfs', ['-q', partial]);
  await onDisk(partial, async () => {
    progress(`installing Debian ${SUITE}`);
    await installDebian(root, SUITE, PACKAGES);
    for (const [name, text] of Object.entries(FILES)) {
      await mkdir(join(root, dirname(name)), { recursive: true });
      await writeFile(join(root, name), text);
    }
    const units = join(root, 'etc/systemd/system');
    for (const name of MASKED) await symlink('/dev/null', join(units, name));
    const wanted = join(units, 'multi-user.target.wants');
    await mkdir(wanted, { recursive: true });
    for (const name of ENABLED) await symlink(`../${name}`, join(wanted, name));
    await symlink(
      '/usr/lib/systemd/system/systemd-networkd.service',
      join(wanted, 'systemd-networkd.service'),
    );
  });
  await rename(partial, disk);
  await writeFile(versionFile, VERSION);
}

/** Mounts the file system of a disk at `root` meanwhile. */
async function onDisk(image: string, work: () => Promise<void>): Promise<void> {
  execFileSync('mount', ['-o', 'loop,noatime', image, root]);
  try {
    await work();
  } finally {
    execFileSync('umount', [root]);
  }
}

function progress(what: string): void {
  process.stdout.write(`the machine's disk: ${what}\n`);
}
