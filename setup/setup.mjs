/**
 * Everything a fresh machine needs before Releap runs on it. Every step looks first and does nothing when there
 * is nothing to do, so this runs before each start and each test. Plain Node >= 18, no dependencies.
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { copyFile, mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { alone } from './alone.mjs';
import { downloadPackage, ensurePackages } from './apt.mjs';
import { ARCHITECTURE } from './architecture.mjs';
import { findCommand, run, say, SetupError } from './command.mjs';
import { bundlePackage } from './bundle.mjs';
import { buildInitramfs } from './initramfs.mjs';
import { ensureKernel, ensureVolumeKernel } from './kernel.mjs';
import { ensureOwnKernel } from './own-kernel.mjs';
import { ensureQemu } from './qemu.mjs';
import {
  BENCH_PACKAGES,
  GO_PACKAGE,
  IMAGE_PACKAGES,
  PACKAGES,
  TEST_PACKAGES,
  VOLUME_PACKAGES,
} from './packages.mjs';
import { BENCH_PROGRAMS, bundlePrograms, PROGRAMS, TEST_PROGRAMS } from './programs.mjs';
import { buildSystemDisk } from './system-disk.mjs';
import { ensureVirtiofsd } from './virtiofsd.mjs';

export const REPO = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
export const NODE = path.join(REPO, 'node_modules', ARCHITECTURE.node, 'bin/node');
const BUILD = path.join(REPO, 'build');
const KERNEL = path.join(BUILD, 'kernel');
const AGENT = path.join(BUILD, 'guest/agent');
/** On the system disk: what the SSH gateway starts in guests, and the toolbox daemon. */
const GUEST_PROGRAMS = ['releap-ssh', 'toolboxd'].map((name) => path.join(BUILD, 'guest', name));
/** Mounts object stores. The runner sends it to the guests that do so: it takes long to build, and few need it. */
const STORE_MOUNT = path.join(BUILD, 'guest/storemount');
const HOSTD = path.join(BUILD, 'host/hostd');
const VOLTREE = path.join(BUILD, 'host/voltree');
/** Of Go 1: what Debian 12 has. */
const OLDEST_GO_MINOR = 19;
const TEST_CLIENTS = path.join(BUILD, 'test-clients');
const INITRAMFS = path.join(BUILD, 'initramfs.cpio.gz');
/** The kernel of guests with volumes, where that of others is too old, with an initramfs and a system disk of its own. */
const VOLUME_KERNEL = path.join(BUILD, 'volume-kernel');
const VOLUME_INITRAMFS = path.join(BUILD, 'volume-initramfs.cpio.gz');
const VOLUME_SYSTEM_DISK = path.join(BUILD, 'volume-system.squashfs');
export const BUNDLES = path.join(BUILD, 'programs');
const SYSTEM_DISK = path.join(BUILD, 'system.squashfs');
const VIRTIOFSD = path.join(BUILD, 'virtiofsd');

async function digestOf(files) {
  const hash = createHash('sha256');
  for (const file of [...files].sort((a, b) => (a < b ? -1 : 1)))
    hash
      .update(file)
      .update('\0')
      .update(await readFile(file))
      .update('\0');
  return hash.digest('hex');
}

/** Runs `make` unless `output` was made from the very same inputs. */
async function onceFor(output, inputs, make) {
  const stamp = `${output}.made-from`;
  const digest = await digestOf(inputs);
  const before = await readFile(stamp, 'utf8').catch(() => '');
  if (before === digest && existsSync(output)) return;
  await make();
  await mkdir(path.dirname(stamp), { recursive: true });
  await writeFile(stamp, digest);
}

async function npmPackages() {
  const lock = path.join(REPO, 'package-lock.json');
  await onceFor(path.join(REPO, 'node_modules/.package-lock.json'), [lock], async () => {
    say('installing the npm packages');
    // Not `npm ci`: it refuses a lock file that leaves out other platforms' builds of optional tools.
    // This installs the locked versions too, and writes neither manifest nor lock.
    await run(
      'npm',
      ['install', '--no-save', '--ignore-scripts', '--include=dev', '--no-audit', '--no-fund'],
      {
        cwd: REPO,
        minutes: 20,
      },
    );
  });
  if (!existsSync(NODE))
    throw new SetupError(`npm installed no Node 24 (${path.relative(REPO, NODE)}): is this Linux on x86-64?`);
  await bundlePackage(path.join(REPO, 'node_modules/typebox'));
}

/** Clients of the compatibility facade, for tests and measurements: other people's programs, apart from our own packages. */
async function testClients() {
  // Those of the contract, and the newest ones.
  for (const set of ['', 'newest']) {
    const from = path.join(REPO, 'setup/test-clients', set);
    const to = path.join(TEST_CLIENTS, set);
    const manifests = ['package.json', 'package-lock.json'].map((file) => path.join(from, file));
    await onceFor(path.join(to, 'node_modules/.package-lock.json'), manifests, async () => {
      say(`installing the ${set === '' ? '' : `${set} `}clients of the compatibility facade`);
      await mkdir(to, { recursive: true });
      for (const file of manifests) await copyFile(file, path.join(to, path.basename(file)));
      await run('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund'], { cwd: to, minutes: 20 });
    });
  }
}

async function filesBelow(folder) {
  const entries = await readdir(folder, { withFileTypes: true, recursive: true });
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => path.join(entry.parentPath ?? entry.path, entry.name));
}

/** A compiler that is new enough: Debian's own is. */
async function findGo() {
  const go = await findCommand('go');
  if (go === undefined) return undefined;
  const version = await run(go, ['env', 'GOVERSION'], { env: { GOTOOLCHAIN: 'local' } }).catch(() => '');
  const [, major, minor] = /^go(\d+)\.(\d+)/.exec(version.trim()) ?? [];
  if (Number(major) > 1 || Number(minor) >= OLDEST_GO_MINOR) return go;
  throw new SetupError(
    `${go} is ${version.trim() || 'no Go'}, and the guest agent and hostd need Go 1.${OLDEST_GO_MINOR} or newer: ` +
      `put a newer one first in PATH, or take that one out of it for Debian's package ${GO_PACKAGE.name}`,
  );
}

/**
 * Builds a static Go binary of this repository, unless its sources are those of the last one.
 * @param {string} folder of its package
 * @param {string} [sourceFolder] which has all its sources, where those are not in `folder` alone
 */
async function goBinary(what, folder, output, sourceFolder = folder) {
  const script = path.join(REPO, 'setup/build-go.sh');
  const sources = [script, ...(await filesBelow(path.join(REPO, sourceFolder)))];
  await onceFor(output, sources, async () => {
    const go = await findGo();
    if (go === undefined) throw new SetupError('the Go compiler is not where it was installed');
    say(`building ${what}`);
    await run('sh', [script, folder, output], {
      env: { PATH: `${path.dirname(go)}${path.delimiter}${process.env.PATH}` },
    });
  });
}

async function initramfs(kernelDir, out, whose) {
  const inputs = [AGENT, path.join(kernelDir, 'vmlinuz'), path.join(REPO, 'setup/initramfs.mjs')];
  await onceFor(out, inputs, async () => {
    say(`building the initramfs of ${whose}`);
    await buildInitramfs({ kernelDir, agentPath: AGENT, out });
  });
}

async function systemDisk(kernelDir, out, whose) {
  const parts = ['setup/system-disk.mjs', 'setup/initramfs.mjs'].map((file) => path.join(REPO, file));
  const kernel = ['version', 'package'].map((name) => path.join(kernelDir, name));
  await onceFor(out, [...kernel, ...GUEST_PROGRAMS, ...parts], async () => {
    say(`building the system disk of ${whose}`);
    await buildSystemDisk({ kernelDir, programs: GUEST_PROGRAMS, out });
  });
}

/**
 * @param {{ forTests?: boolean, forBench?: boolean, canDefer?: boolean }} [options] with `canDefer`, parts that are missing and
 *   that the first sandbox does not need are left to a later set-up
 * @returns {Promise<{ isComplete: boolean }>} false when such parts are missing
 */
export async function setUp({ forTests = false, forBench = false, canDefer = false } = {}) {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    throw new SetupError(`Releap runs on Linux on x86-64; this is ${process.platform} on ${process.arch}`);
  }
  await mkdir(BUILD, { recursive: true });
  return await alone(path.join(BUILD, 'setup.lock'), async () => {
    // The last part of what each needs: where it is there, all of them are, and are renewed before the service starts.
    const withVolumes = !canDefer || existsSync(path.join(VIRTIOFSD, 'current'));
    const withStores = !canDefer || existsSync(STORE_MOUNT);
    // Debian's packages first: the others need their tools. npm only downloads meanwhile.
    await together([
      ensurePackages([
        ...PACKAGES,
        ...(withVolumes ? VOLUME_PACKAGES : []),
        ...(forTests ? TEST_PACKAGES : []),
        ...(forBench ? BENCH_PACKAGES : []),
        ...((await findGo()) === undefined ? [GO_PACKAGE] : []),
      ]),
      npmPackages(),
    ]);
    // Compilers use the processors while the next archive is downloaded.
    const [hasVolumeKernel] = await together([
      unpackArchives({ withVolumes }),
      goBinaries({ withVolumes }),
      bundlePrograms(REPO, BUNDLES, [
        ...PROGRAMS,
        ...(forTests ? TEST_PROGRAMS : []),
        ...(forBench ? BENCH_PROGRAMS : []),
      ]),
      ...(forTests || forBench ? [testClients()] : []),
    ]);
    await initramfs(KERNEL, INITRAMFS, 'guests');
    await systemDisk(KERNEL, SYSTEM_DISK, 'guests');
    await ensureOwnKernel(path.join(BUILD, 'own-kernel'), AGENT, GUEST_PROGRAMS, onceFor);
    if (hasVolumeKernel) {
      await initramfs(VOLUME_KERNEL, VOLUME_INITRAMFS, 'guests with volumes');
      await systemDisk(VOLUME_KERNEL, VOLUME_SYSTEM_DISK, 'guests with volumes');
    }
    // Last: a runner that finds virtiofsd mounts volumes, with a guest of these parts (packages/runner/src/volume/probe-volumes.ts).
    await together([
      ...(withVolumes ? [ensureVirtiofsd(VIRTIOFSD)] : []),
      ...(withStores
        ? [goBinary('the mounts of object stores (rclone)', 'guest/storemount', STORE_MOUNT)]
        : []),
    ]);
    return { isComplete: withVolumes && withStores };
  });
}

/**
 * One after the other: they share lists of packages.
 * @returns {Promise<boolean>} whether guests with volumes have a kernel of their own, which was unpacked
 */
async function unpackArchives({ withVolumes }) {
  await ensureKernel({ folder: KERNEL, packages: path.join(BUILD, 'packages') });
  const hasVolumeKernel =
    withVolumes &&
    (await ensureVolumeKernel({
      folder: VOLUME_KERNEL,
      kernel: KERNEL,
      lists: path.join(VIRTIOFSD, 'apt'),
    }));
  await ensureQemu(path.join(BUILD, 'qemu'));
  for (const name of IMAGE_PACKAGES) await downloadPackage(name, path.join(BUILD, 'packages'));
  return hasVolumeKernel;
}

/** One after the other: each build uses all processors. */
async function goBinaries({ withVolumes }) {
  await goBinary('the guest agent', 'guest/cmd/agent', AGENT, 'guest');
  const [sshProgram, toolboxDaemon] = GUEST_PROGRAMS;
  await goBinary('the SSH program of guests', 'guest/ssh', sshProgram);
  await goBinary('the toolbox daemon of guests', 'guest/toolbox', toolboxDaemon, 'guest');
  await goBinary('hostd', 'host/cmd/hostd', HOSTD, 'host');
  if (withVolumes) await goBinary('voltree', 'host/cmd/voltree', VOLTREE, 'host');
}

/** All of them, to their ends: what runs on after an error would write below the next set-up. @throws the first error */
async function together(steps) {
  const ended = await Promise.allSettled(steps);
  for (const one of ended) if (one.status === 'rejected') throw one.reason;
  return ended.map(({ value }) => value);
}

/** Runs an entry point of the set-up: errors for people, without a stack. */
export async function main(action) {
  try {
    await action();
  } catch (error) {
    if (!(error instanceof SetupError)) throw error;
    process.stderr.write(`\nset-up failed: ${error.message}\n`);
    process.exitCode = 1;
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main(() => setUp());
