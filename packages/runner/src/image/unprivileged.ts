/** What the image processes call first: they start as root to load their code, and read no input before this. */

/** Users without a name and a home, one a pull, which own nothing but the working directory of its processes. */
export const IMAGE_UIDS = { first: 0x6fff_0000, last: 0x6fff_ffff } as const;
/** The process's own folder in the root that `hostd jail` makes. */
const FOLDER = '/vm';

/** Enters the folder, and becomes the user that the first argument names for good. */
export function dropPrivileges(): void {
  const uid = Number(process.argv[2]);
  if (!(uid >= IMAGE_UIDS.first && uid <= IMAGE_UIDS.last))
    throw new Error(`${process.argv[2]} is no user of image processes`);
  process.setgroups?.([]);
  process.setgid?.(uid);
  process.setuid?.(uid);
  if (process.getuid?.() !== uid) throw new Error(`cannot become user ${uid}`);
  process.chdir(FOLDER);
}
