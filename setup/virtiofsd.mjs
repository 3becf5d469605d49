/**
 * virtiofsd, which serves a volume to one sandbox: the newest that can be had, unpacked and not installed, with the libraries
 * that it needs. Plain Node >= 18, no dependencies: set-up runs it before anything is there.
 *
 * The folder holds `version` (as virtiofsd prints it), `package`, `bin` and `lib`.
 */
import { rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { debianCodename, machineView, suiteView } from './apt-view.mjs';
import { candidateVersion, refreshLists } from './apt.mjs';
import { run, SetupError } from './command.mjs';
import { packProgram } from './linked-program.mjs';
import { ensureUnpacked } from './unpacked.mjs';

const PACKAGE = 'virtiofsd';
const PROGRAM = 'usr/libexec/virtiofsd';
/** The first Debian release that has it; its backports to earlier ones do not. */
const DEBIAN_SUITE = 'trixie';

/** @param {string} folder absolute; `current` in it has the program */
export async function ensureVirtiofsd(folder) {
  await ensureUnpacked({
    folder: path.join(folder, 'current'),
    what: 'virtiofsd',
    mark: 'bin/virtiofsd',
    newest: (refresh) => newest(path.join(folder, 'apt'), refresh),
    unpack,
  });
}

/** From the machine's own archive if that has it (Debian 13, Ubuntu 24.04), else from that of Debian 13. */
async function newest(folder, refresh) {
  if (refresh) await refreshLists();
  const own = await candidateVersion(PACKAGE).catch(() => undefined);
  if (own !== undefined) return { view: await machineView(folder), id: `${PACKAGE}=${own}` };
  const codename = await debianCodename();
  if (codename === undefined)
    throw new SetupError('this distribution has no virtiofsd: Debian 12 or 13, or Ubuntu 24.04, is needed');
  const view = await suiteView(folder, codename, DEBIAN_SUITE);
  await view.update();
  return { view, id: `${PACKAGE}=${await view.candidate(PACKAGE)}` };
}

async function unpack({ view }, scratch, made) {
  const all = path.join(scratch, 'all');
  for (const deb of await view.download(PACKAGE)) await run('dpkg-deb', ['-x', deb, all]);
  const said = await packProgram({
    root: all,
    program: path.join(all, PROGRAM),
    made,
    version: ['--version'],
  });
  const version = /virtiofsd (\d+\.\d+\.\d+)/.exec(said)?.[1];
  if (version === undefined) throw new SetupError(`virtiofsd says no version: ${said.slice(0, 200)}`);
  await writeFile(path.join(made, 'version'), `${version}\n`);
  await rm(view.archives, { recursive: true, force: true });
}
