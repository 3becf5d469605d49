/** What the image processes call first: they start as root to load their code, and read no input before this. */

/** Has no name, no home, and owns nothing but the working directories of these processes. */
export const IMAGE_UID = 0x6ffe_0001;
/** The process's own folder in the root that `hostd jail` makes. */
const FOLDER = '/vm';

/** Enters the folder, and becomes `IMAGE_UID` for good. */
export function dropPrivileges(): void {
  process.setgroups?.([]);
  process.setgid?.(IMAGE_UID);
  process.setuid?.(IMAGE_UID);
  if (process.getuid?.() !== IMAGE_UID) throw new Error(`cannot become user ${IMAGE_UID}`);
  process.chdir(FOLDER);
}
