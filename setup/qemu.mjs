/**
 * The VMM: a QEMU of a version that we choose, unpacked and not installed, complete with the libraries, modules and firmware
 * that it needs, so that it runs the same whatever the machine installs, upgrades or removes. Plain Node >= 18, no
 * dependencies: set-up runs it before anything is there.
 *
 * A folder of one holds `version` (as QEMU says it), `package`, and `bin`, `lib`, `modules` and `firmware`. How it is started
 * from wherever the folder lies: `vmmCommand` of packages/runner/src/vmm/qemu/vmm-store.ts.
 */
import { copyFile, mkdir, readdir, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { backportsView, debianCodename, machineView } from './apt-view.mjs';
import { candidateVersion, refreshLists } from './apt.mjs';
import { ARCHITECTURE } from './architecture.mjs';
import { run, SetupError } from './command.mjs';
import { libraryFolders, packProgram } from './linked-program.mjs';
import { ensureUnpacked } from './unpacked.mjs';

const { vmm: NAME, vmmPackage: PACKAGE } = ARCHITECTURE;
/** From here on a file of memory can be mapped privately without being opened for writing. */
const OLDEST = [8, 2];
/** Firmware that our machines may load. Of two folders with a file of one name, QEMU uses the first. */
const FIRMWARE = /^(?:bios|kvmvapic|linuxboot|multiboot|pvh|qboot|vgabios)[\w.-]*$/;
const FIRMWARE_FOLDERS = ['usr/share/qemu', 'usr/share/seabios'];
/** Of loadable parts, the accelerators. */
const MODULES = /^accel-(?:tcg|kvm).*\.so$/;

/** Has the newest QEMU in `folder/newest`. @param {string} folder absolute */
export async function ensureQemu(folder) {
  await ensureUnpacked({
    folder: path.join(folder, 'newest'),
    what: 'the VMM',
    mark: `bin/${NAME}`,
    newest: (refresh) => newestQemu(path.join(folder, 'apt'), refresh),
    unpack,
  });
}

async function unpack({ view }, scratch, made) {
  const all = path.join(scratch, 'all');
  for (const deb of await view.download(PACKAGE)) await run('dpkg-deb', ['-x', deb, all]);
  await pack(all, path.join(all, 'usr/bin', NAME), made);
  await rm(view.archives, { recursive: true, force: true });
}

async function ofMachine(folder) {
  return { view: await machineView(folder), id: `${PACKAGE}=${await candidateVersion(PACKAGE)}` };
}

/** @param {string} version of a Debian package, e.g. `1:10.0.2+ds-2~bpo12+1`. @returns {boolean} */
export function isNewEnough(version) {
  const [major, minor] = version
    .replace(/^\d+:/, '')
    .split(/[.+~-]/)
    .map(Number);
  return major > OLDEST[0] || (major === OLDEST[0] && minor >= OLDEST[1]);
}

/** From the machine's own archive where that is new enough (Debian 13, Ubuntu 24.04), else from Debian's backports. */
async function newestQemu(folder, refresh) {
  if (refresh) await refreshLists();
  const own = await candidateVersion(PACKAGE).catch(async () => {
    await refreshLists();
    return await candidateVersion(PACKAGE);
  });
  if (isNewEnough(own)) return await ofMachine(folder);
  const codename = await debianCodename();
  if (codename === undefined)
    throw new SetupError(
      `QEMU ${OLDEST.join('.')} or newer is needed and this distribution has ${own}: Debian 12 or 13, or Ubuntu 24.04, has it`,
    );
  const view = await backportsView(folder, codename);
  await view.update();
  const version = await view.candidate(PACKAGE);
  if (!isNewEnough(version))
    throw new SetupError(
      `QEMU ${OLDEST.join('.')} or newer is needed and ${codename}-backports has ${version}`,
    );
  return { view, id: `${PACKAGE}=${version}` };
}

/** Fills the empty folder `made` with a program from below `root`, and with all that it needs from there. */
async function pack(root, program, made) {
  for (const name of ['modules', 'firmware']) await mkdir(path.join(made, name));
  const folders = libraryFolders(root).map((folder) => path.join(folder, 'qemu'));
  const modules = await copyMatching(folders, MODULES, path.join(made, 'modules'));
  const firmware = FIRMWARE_FOLDERS.map((folder) => path.join(root, folder));
  await copyMatching(firmware, FIRMWARE, path.join(made, 'firmware'));
  const said = await packProgram({ root, program, loadable: modules, made, version: ['--version'] });
  const version = /version (\d+\.\d+\.\d+)/.exec(said)?.[1];
  if (version === undefined) throw new SetupError(`QEMU says no version: ${said.slice(0, 200)}`);
  await writeFile(path.join(made, 'version'), `${version}\n`);
}

/** Copies what has this name; of two of a name, the one in the first folder. @returns {Promise<string[]>} what was copied */
async function copyMatching(folders, pattern, target) {
  const found = new Map();
  for (const folder of folders) {
    for (const name of await readdir(folder).catch(() => []))
      if (pattern.test(name) && !found.has(name)) found.set(name, path.join(folder, name));
  }
  for (const [name, file] of found) await copyFile(file, path.join(target, name));
  return [...found.values()];
}
