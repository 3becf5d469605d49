import { join } from 'node:path';

/** The files of one volume's copy on this host. */
export interface VolumePaths {
  /** Holds all the others. */
  folder: string;
  /** The file system of the copy, a sparse file. */
  image: string;
  /** Where the image is mounted while it is used. */
  mount: string;
  /** In the mounted file system: the tree that sandboxes see. */
  data: string;
  /** In the mounted file system, beside `data`: files that a merge has replaced while a sandbox may still write to them. */
  displaced: string;
  /** Index and base manifest of voltree. */
  state: string;
  /** Packs of a commit that is being made. */
  outgoing: string;
  /** Packs that were downloaded for a checkout or a merge. */
  incoming: string;
  record: string;
}

export function volumePaths(root: string, volumeId: string): VolumePaths {
  const folder = join(root, volumeId);
  const mount = join(folder, 'mnt');
  return {
    folder,
    image: join(folder, 'disk.img'),
    mount,
    data: join(mount, 'data'),
    displaced: join(mount, '.releap', 'limbo'),
    state: join(folder, 'state'),
    outgoing: join(folder, 'outgoing'),
    incoming: join(folder, 'incoming'),
    record: join(folder, 'copy.json'),
  };
}
