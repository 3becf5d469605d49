import { createHash } from 'node:crypto';
import { access, constants, lstat, readlink, symlink, unlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';

/** The port is part of the socket's name, and is fixed. */
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
 * A path to the socket that is short enough for the kernel: the folder itself, or a symbolic link to it in /run
 * (in the folder for temporary files if that is not writable). The link's name is derived from the folder, so
 * a link from before a crash is reused.
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
      throw new Error(
        `${link} belongs to another user, and the path of ${folder} is too long for a socket without it`,
      );
    }
    if ((await readlink(link)) === folder) return { path: link, remove };
    await remove();
  }
  await symlink(folder, link);
  return { path: link, remove };
}
