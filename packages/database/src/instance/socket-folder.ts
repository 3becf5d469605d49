import { createHash } from 'node:crypto';
import { access, constants, lstat, readlink, symlink, unlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';

/** With a port of its own number the socket would have another name; it never has. */
export const SOCKET_PORT = 5432;
const SOCKET_NAME = `.s.PGSQL.${SOCKET_PORT}`;
/** unix(7): sun_path has 108 bytes, the last of which ends the string. */
const PATH_MAX_BYTES = 107;

export interface SocketFolder {
  /** What clients connect to. */
  path: string;
  remove(): Promise<void>;
}

/**
 * A way to the socket that is short enough for the kernel: the folder itself, or a symbolic link to it in /run
 * (in the folder for temporary files when that is closed to us). The link's name follows from the folder, so
 * one that a crash left behind is taken over.
 */
export async function reachableSocketFolder(folder: string): Promise<SocketFolder> {
  if (Buffer.byteLength(path.join(folder, SOCKET_NAME)) <= PATH_MAX_BYTES) {
    return { path: folder, remove: () => Promise.resolve() };
  }
  const name = `releap-${createHash('sha256').update(folder).digest('hex').slice(0, 16)}`;
  const open = await access('/run', constants.W_OK).then(
    () => true,
    () => false,
  );
  const link = path.join(open ? '/run' : tmpdir(), name);
  const remove = async (): Promise<void> => {
    await unlink(link).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOENT') throw error;
    });
  };
  const present = await lstat(link).catch(() => undefined);
  if (present !== undefined) {
    if (!present.isSymbolicLink() || present.uid !== process.getuid?.()) {
      throw new Error(`${link} is not ours, and the path of ${folder} is too long for a socket without it`);
    }
    if ((await readlink(link)) === folder) return { path: link, remove };
    await remove();
  }
  await symlink(folder, link);
  return { path: link, remove };
}
