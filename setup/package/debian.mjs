/** The Debian package: one for Debian 12 and 13 and Ubuntu 24.04, as it brings its own QEMU, kernels, Node and PostgreSQL. */
import { createHash } from 'node:crypto';
import { chmod, mkdir, readdir, readFile, rename, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { gzipSync } from 'node:zlib';
import { ARCHITECTURE } from '../architecture.mjs';
import { run } from '../command.mjs';
import { PACKAGES, VOLUME_PACKAGES } from '../packages.mjs';
import { copyReproducibly, setTimes } from './archive.mjs';

const LIBRARY = 'usr/lib/releap';
const UNITS = 'usr/lib/systemd/system';
const CONFIGURATION = 'etc/releap/releap.env';
/** Packages that only the set-up uses: what they make is packed. */
const ONLY_SETUP = ['squashfs-tools', 'xz-utils', 'zstd'];
/** No package names them. */
const ESSENTIAL = ['util-linux'];
/** The service works without it. */
const RECOMMENDED = ['haproxy'];
/** Of Node, which is built for them or newer ones, and of the scripts of the package. */
const LIBRARIES = ['libc6 (>= 2.34)', 'libgcc-s1', 'libstdc++6 (>= 12)', 'adduser'];
const SCRIPTS = ['postinst', 'prerm', 'postrm'];

/**
 * @param {string} file to write
 * @param {object} options
 * @param {string} options.tree the folder of the package, which is moved
 * @param {string} options.deploy folder with units, scripts and configuration
 * @param {string} options.scratch an existing folder
 * @param {number} options.epoch time of all files, seconds
 */
export async function writeDebianPackage(file, { tree, deploy, scratch, version, epoch }) {
  const root = path.join(scratch, 'debian');
  const at = (name) => path.join(root, name);
  await mkdir(at('DEBIAN'), { recursive: true });
  await mkdir(at(path.dirname(LIBRARY)), { recursive: true });
  await rename(tree, at(LIBRARY));
  await mkdir(at('usr/bin'));
  for (const name of ['releap', 'rlp']) await symlink(`../lib/releap/bin/${name}`, at(`usr/bin/${name}`));
  await copyReproducibly(path.join(deploy, 'systemd'), at(UNITS));
  await copyReproducibly(path.join(deploy, 'releap.env'), at(CONFIGURATION));
  await documents(root, deploy, version, epoch);
  await setTimes(root, epoch);
  // Secrets are written into it.
  await chmod(at(CONFIGURATION), 0o600);

  const sums = await contentsOf(root);
  await writeFile(at('DEBIAN/md5sums'), sums.map(({ name, md5 }) => `${md5}  ${name}\n`).join(''));
  await writeFile(at('DEBIAN/conffiles'), `/${CONFIGURATION}\n`);
  const kib = Math.ceil(sums.reduce((sum, { bytes }) => sum + bytes, 0) / 1024);
  await writeFile(at('DEBIAN/control'), controlFile({ version, kib }));
  for (const name of ['md5sums', 'conffiles', 'control']) await chmod(at(`DEBIAN/${name}`), 0o644);
  for (const name of SCRIPTS) await copyReproducibly(path.join(deploy, 'debian', name), at(`DEBIAN/${name}`));
  await setTimes(at('DEBIAN'), epoch);
  await run('dpkg-deb', ['--root-owner-group', '-Zzstd', '-z10', '--threads-max=1', '--build', root, file], {
    env: { SOURCE_DATE_EPOCH: String(epoch) },
    minutes: 30,
  });
}

async function documents(root, deploy, version, epoch) {
  const folder = path.join(root, 'usr/share/doc/releap');
  await mkdir(folder, { recursive: true });
  await copyReproducibly(path.join(deploy, 'debian/copyright'), path.join(folder, 'copyright'));
  const date = new Date(epoch * 1000).toUTCString().replace('GMT', '+0000');
  const change = `releap (${version}) stable; urgency=medium\n\n  * See CHANGELOG.md of this version.\n\n -- ${maintainer()}  ${date}\n`;
  await writeFile(path.join(folder, 'changelog.gz'), gzipSync(change, { level: 9 }), { mode: 0o644 });
  const overrides = path.join(root, 'usr/share/lintian/overrides/releap');
  await copyReproducibly(path.join(deploy, 'debian/lintian-overrides'), overrides);
}

/** As Debian's own tools take it. */
function maintainer({ DEBFULLNAME = 'Releap', DEBEMAIL = 'releap@example.org' } = process.env) {
  return `${DEBFULLNAME} <${DEBEMAIL}>`;
}

/** @param {{ version: string, kib: number }} options */
export function controlFile({ version, kib }) {
  const needed = [...PACKAGES, ...VOLUME_PACKAGES]
    .map(({ name }) => name)
    .filter((name) => ![...ONLY_SETUP, ...ESSENTIAL, ...RECOMMENDED].includes(name));
  return `Package: releap
Version: ${version}
Architecture: ${ARCHITECTURE.name}
Maintainer: ${maintainer()}
Installed-Size: ${kib}
Depends: ${[...LIBRARIES, ...needed].join(', ')}
Recommends: ${RECOMMENDED.join(', ')}
Section: admin
Priority: optional
Description: self-hosted cloud of micro-VM sandboxes
 Releap runs untrusted code, each workload in its own virtual machine, from
 any OCI image, behind a REST API that you host. The package contains the
 service with its QEMU, kernels of guests, Node and PostgreSQL, and rlp, its
 command line.
 .
 Nothing is started at the installation: enable the unit of the role of this
 machine. "releap" is the whole service on one machine.
`;
}

/** All files but those of `DEBIAN`, in order. */
async function contentsOf(root) {
  const entries = await readdir(root, { withFileTypes: true, recursive: true });
  const names = entries
    .filter((entry) => entry.isFile())
    .map((entry) => path.relative(root, path.join(entry.parentPath, entry.name)))
    .filter((name) => !name.startsWith('DEBIAN/'))
    .sort();
  const found = [];
  for (const name of names) {
    const content = await readFile(path.join(root, name));
    found.push({ name, bytes: content.length, md5: createHash('md5').update(content).digest('hex') });
  }
  return found;
}
