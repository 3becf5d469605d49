/** Debian packages: which are missing, and their installation. */
import { existsSync, rmSync } from 'node:fs';
import { chmod, mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { findCommand, run, say, SetupError } from './command.mjs';

const isRoot = process.getuid?.() === 0;
/** Another package manager may hold the lock for a while, on a machine that updates itself. */
const APT = ['-q', '-o', 'DPkg::Lock::Timeout=300', '-o', 'Acquire::Retries=3'];
const ENV = { DEBIAN_FRONTEND: 'noninteractive', LC_ALL: 'C.UTF-8' };
const POLICY = '/usr/sbin/policy-rc.d';
/** Identifies our file when an earlier set-up was killed and left it. */
const POLICY_TEXT =
  '#!/bin/sh\n# Written by the set-up of Releap while it installs packages; may be removed.\nexit 101\n';

let updated = false;

async function update() {
  if (updated) return;
  say('reading the lists of Debian packages');
  await run('apt-get', [...APT, 'update'], { env: ENV });
  updated = true;
}

/** Once with the present lists, and once more with updated ones: old lists name files that are gone. */
async function withLists(action) {
  try {
    return await action();
  } catch {
    await update();
    return await action();
  }
}

/**
 * Packages that we need only as tools must not start their services. The policy file that prevents it must not outlive
 * us: with it, nothing on this machine would start services any more.
 */
async function withoutServices(action) {
  if ((await readFile(POLICY, 'utf8').catch(() => '')) === POLICY_TEXT) await rm(POLICY, { force: true });
  const ours = await writeFile(POLICY, POLICY_TEXT, { flag: 'wx' }).then(
    () => true,
    () => false,
  );
  const interrupted = () => {
    if (ours) rmSync(POLICY, { force: true });
    process.exit(130);
  };
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'];
  for (const signal of signals) process.on(signal, interrupted);
  try {
    if (ours) await chmod(POLICY, 0o755);
    return await action();
  } finally {
    for (const signal of signals) process.off(signal, interrupted);
    if (ours) await rm(POLICY, { force: true });
  }
}

/** A package that was not here before must not run its service from the next boot on, either. */
async function disableServices(packages) {
  const services = packages.flatMap(({ service }) => (service === undefined ? [] : [service]));
  if (services.length === 0 || (await findCommand('systemctl')) === undefined) return;
  await run('systemctl', ['disable', ...services]).catch((error) => say(error.message));
}

/** Whether what a package is wanted for is there already, from any source. */
async function isThere({ command, file }) {
  return file === undefined ? (await findCommand(command)) !== undefined : existsSync(file);
}

/** @param {import('./packages.mjs').DebianPackage[]} packages */
export async function ensurePackages(packages) {
  const found = await Promise.all(packages.map(isThere));
  const missing = packages.filter((_, i) => !found[i]);
  if (missing.length === 0) return;
  const names = missing.map(({ name }) => name);
  if (!isRoot || (await findCommand('apt-get')) === undefined) {
    const list = missing
      .map(({ name, command, file, why }) => `  ${name} (${command ?? file}: ${why})`)
      .join('\n');
    throw new SetupError(
      `these Debian packages are missing:\n${list}\nInstall them, then start again:\n  sudo apt-get install ${names.join(' ')}`,
    );
  }
  say(`installing ${names.join(', ')}`);
  await withoutServices(() =>
    withLists(() =>
      run('apt-get', [...APT, 'install', '-y', '--no-install-recommends', ...names], {
        env: ENV,
        minutes: 30,
      }),
    ),
  );
  await disableServices(missing);
}

/** Updates the lists, where this user may. */
export async function refreshLists() {
  if (isRoot && (await findCommand('apt-get')) !== undefined) await update();
}

/** The version that would be installed. */
export async function candidateVersion(name) {
  const text = await run('apt-cache', ['policy', name], { env: ENV });
  const version = /^ *Candidate: (\S+)$/m.exec(text)?.[1];
  if (version === undefined || version === '(none)')
    throw new SetupError(`the lists of packages have no version of ${name}`);
  return version;
}

/**
 * The newest `.deb` of a package in `folder`, fetched if none is there.
 * @returns {Promise<string>} its path
 */
export async function downloadPackage(name, folder) {
  await mkdir(folder, { recursive: true });
  const version = await candidateVersion(name).catch(() => undefined);
  // As apt-get names what it has downloaded: with the colon of an epoch escaped.
  const prefix = version === undefined ? `${name}_` : `${name}_${version.replaceAll(':', '%3a')}_`;
  const find = async () =>
    (await readdir(folder)).find((file) => file.startsWith(prefix) && file.endsWith('.deb'));
  const existing = await find();
  if (existing !== undefined) return path.join(folder, existing);
  say(`downloading ${name}`);
  // As root inside our own folder: apt's unprivileged downloader may have no access to it.
  await withLists(() =>
    run('apt-get', [...APT, '-o', 'APT::Sandbox::User=root', 'download', name], { cwd: folder, env: ENV }),
  );
  const file = await find();
  if (file === undefined) throw new SetupError(`apt-get download ${name} left no file`);
  return path.join(folder, file);
}

/** The package that a meta package such as the kernel's depends on. */
export async function dependencyMatching(name, pattern) {
  const read = async () => {
    const text = await run('apt-cache', ['depends', '--no-recommends', '--no-suggests', name], { env: ENV });
    const found = text.match(pattern)?.[1];
    if (found === undefined) throw new SetupError(`Debian's ${name} names no package like ${pattern}`);
    return found;
  };
  return withLists(read);
}
