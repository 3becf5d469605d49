/**
 * Files that are unpacked from the distribution's packages without installing them, and replaced when the distribution has newer
 * ones. Plain Node >= 18, no dependencies: set-up runs it before anything is there.
 */
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { say } from './command.mjs';

/** How often a newer one is looked for. */
const CHECK_EVERY_MS = 24 * 60 * 60_000;

/**
 * Has `folder` made from the newest packages; its file `package` names them. The present one stays when no newer one can be
 * had.
 * @template {{ id: string }} Source
 * @param {object} options
 * @param {string} options.folder absolute
 * @param {string} options.what names it to people
 * @param {string} options.mark a file in it that is always there
 * @param {(refresh: boolean) => Promise<Source>} options.newest finds what can be had, with new lists if asked
 * @param {(source: Source, scratch: string, made: string) => Promise<void>} options.unpack fills the empty folder `made`
 * @param {number} [options.now]
 */
export async function ensureUnpacked({ folder, what, mark, newest, unpack, now = Date.now() }) {
  const present = existsSync(path.join(folder, mark));
  if (present && !(await isCheckDue(folder, now))) return;
  try {
    const wanted = await newest(present);
    const have = (await readFile(path.join(folder, 'package'), 'utf8').catch(() => '')).trim();
    if (!present || have !== wanted.id) {
      say(`unpacking ${what} (${wanted.id})`);
      await replace(folder, async (scratch, made) => {
        await unpack(wanted, scratch, made);
        await writeFile(path.join(made, 'package'), `${wanted.id}\n`);
      });
    }
    await utimes(folder, new Date(now), new Date(now));
  } catch (error) {
    if (!present) throw error;
    say(`could not look for a newer version of ${what}: ${error.message.split('\n')[0]}`);
  }
}

/** @returns {Promise<boolean>} */
export async function isCheckDue(folder, now) {
  const { mtimeMs } = await stat(folder);
  return now - mtimeMs >= CHECK_EVERY_MS || mtimeMs > now;
}

/**
 * Publishes a folder by rename.
 * @param {string} folder absolute
 * @param {(scratch: string, made: string) => Promise<void>} make fills the empty folder `made`; `scratch` is removed
 */
async function replace(folder, make) {
  await mkdir(path.dirname(folder), { recursive: true });
  const scratch = await mkdtemp(`${folder}-`);
  try {
    const made = path.join(scratch, path.basename(folder));
    await mkdir(made);
    await make(scratch, made);
    await rm(folder, { recursive: true, force: true });
    await rename(made, folder);
  } finally {
    await rm(scratch, { recursive: true, force: true });
  }
}
