/**
 * The file tree that a stack of layers describes, held in memory: names and metadata only, bodies stay where they are.
 * No name from an image is ever given to the host's file system.
 *
 * Layers are applied from the bottom up, each in two rounds: first its whiteouts, against what lies below (so that their
 * place within the archive does not matter), then its entries, in order.
 *
 * What must hold, as the appliers of other engines have it:
 * - A name's parents may be symbolic links of a lower layer; they are followed inside the tree and can never leave it.
 *   The last part of a name is never followed.
 * - A folder over a folder keeps its content and takes the new metadata; anything else replaces what was there.
 * - Parents that no archive mentions are made, as 0755 root.
 * - A hard link shares the file itself: it survives when the name it was made from is removed or replaced.
 */
import { ImageError, show } from './image-error.ts';
import type { ImageLimits } from './image-limits.ts';
import type { Extent, TarEntry } from './tar-read.ts';

export interface TreeNode {
  type: 'file' | 'symlink' | 'char' | 'block' | 'directory' | 'fifo';
  mode: number;
  uid: number;
  gid: number;
  mtime: number;
  size: number;
  extents: Extent[];
  /** Index of the layer that holds the body. */
  layer: number;
  link: string;
  devMajor: number;
  devMinor: number;
  xattrs?: Map<string, Buffer>;
  /** Only of a folder. */
  children?: Map<string, TreeNode>;
  /** Names that share this file, at least this many were made; 1 means surely no other. */
  names: number;
}

export type TreeLimits = Pick<
  ImageLimits,
  'entries' | 'pathBytes' | 'nameBytes' | 'metadataBytes' | 'fileBytes'
>;

const WHITEOUT = '.wh.';
const OPAQUE = '.wh..wh..opq';
/** As many symbolic links in one name as Linux follows. */
const LINKS_MAX = 40;
/** Extended attributes that a file system of ours can hold. Those of overlayfs would speak to the guest's own overlay. */
const XATTR_KEPT = /^(user|trusted|security)\.(?!overlay\.)./;
const ID_MAX = 0xff_ff_ff_fe;

export class LayerTree {
  readonly root: TreeNode = folder();
  readonly #limits: TreeLimits;
  #entries = 0;
  #metadata = 0;
  #made = 0;

  constructor(limits: TreeLimits) {
    this.#limits = limits;
  }

  /**
   * Applies one layer. `read` is called twice and must give the same entries both times.
   * @throws ImageError `invalid-image` for what no layer may do, `too-large` beyond a limit.
   */
  apply(layer: number, read: () => Iterable<TarEntry>): void {
    const hidden = new Map<TreeNode, Map<string, TreeNode>>();
    for (const entry of read()) {
      this.#entries += 1;
      this.#bound('entries', this.#entries, 'entries');
      const parts = this.#split(entry.path);
      const base = parts.pop();
      if (base?.startsWith(WHITEOUT)) this.#whiteout(parts, base, hidden);
    }
    for (const entry of read()) this.#add(layer, entry, hidden);
  }

  #whiteout(parents: readonly string[], base: string, hidden: Map<TreeNode, Map<string, TreeNode>>): void {
    const parent = this.#resolve(parents, false);
    if (base === OPAQUE) {
      if (parent?.children) {
        for (const [name, node] of parent.children) remember(hidden, parent, name, node);
        parent.children.clear();
      }
      return;
    }
    const name = base.slice(WHITEOUT.length);
    // `.wh..wh.*` other than the opaque mark is book-keeping of an old storage driver.
    if (name.startsWith(WHITEOUT)) return;
    if (name === '' || name === '.' || name === '..') {
      throw new ImageError(
        'invalid-image',
        `a layer has the whiteout ${show(base)}, which names nothing that can be removed`,
      );
    }
    const node = parent?.children?.get(name);
    if (!parent?.children || !node) return;
    remember(hidden, parent, name, node);
    parent.children.delete(name);
  }

  #add(layer: number, entry: TarEntry, hidden: Map<TreeNode, Map<string, TreeNode>>): void {
    const parts = this.#split(entry.path);
    const base = parts.pop();
    if (base === undefined) {
      if (entry.type !== 'directory')
        throw new ImageError('invalid-image', 'a layer replaces the root folder by something else');
      this.#setMetadata(this.root, entry);
      return;
    }
    if (base.startsWith(WHITEOUT)) return;
    const parent = this.#resolve(parts, true, entry.path);
    if (!parent?.children) throw new ImageError('failed', `no folder for ${show(entry.path)}`);
    const existing = parent.children.get(base);

    if (entry.type === 'link') {
      const target = this.#linkTarget(entry, hidden);
      if (target === existing) return;
      target.names += 1;
      this.#count(base.length);
      parent.children.set(base, target);
      return;
    }
    if (entry.type === 'directory' && existing?.type === 'directory') {
      this.#setMetadata(existing, entry);
      return;
    }
    // Character device 0:0 is how overlayfs writes a whiteout: in the guest's overlay it would show as nothing.
    if (entry.type === 'char' && entry.devMajor === 0 && entry.devMinor === 0) {
      parent.children.delete(base);
      return;
    }
    if (entry.size > this.#limits.fileBytes) {
      throw new ImageError(
        'too-large',
        `${show(entry.path)} has ${entry.size} bytes, at most ${this.#limits.fileBytes} are allowed`,
      );
    }
    const node = entry.type === 'directory' ? folder() : leaf(entry.type);
    this.#setMetadata(node, entry);
    node.size = entry.size;
    node.extents = entry.extents;
    node.layer = layer;
    node.link = entry.link;
    node.devMajor = entry.devMajor;
    node.devMinor = entry.devMinor;
    if (node.type === 'symlink' && (node.link === '' || node.link.length > this.#limits.pathBytes)) {
      throw new ImageError(
        'invalid-image',
        `${show(entry.path)} is a symbolic link to a name of ${node.link.length} bytes`,
      );
    }
    this.#count(base.length + node.link.length + node.extents.length * 32);
    parent.children.set(base, node);
  }

  #setMetadata(node: TreeNode, entry: TarEntry): void {
    if (entry.uid > ID_MAX || entry.gid > ID_MAX) {
      throw new ImageError(
        'invalid-image',
        `${show(entry.path)} belongs to ${entry.uid}:${entry.gid}; ids go up to ${ID_MAX}`,
      );
    }
    node.mode = entry.mode;
    node.uid = entry.uid;
    node.gid = entry.gid;
    // What the root image can hold: seconds from 1970 to 2106.
    node.mtime = Math.min(Math.max(entry.mtime, 0), 0xff_ff_ff_ff);
    delete node.xattrs;
    for (const [name, value] of entry.xattrs ?? []) {
      if (!XATTR_KEPT.test(name)) continue;
      if (name.length > 255 || value.length > 65_535) {
        throw new ImageError(
          'invalid-image',
          `${show(entry.path)} has an extended attribute larger than Linux allows`,
        );
      }
      node.xattrs ??= new Map();
      node.xattrs.set(name, value);
      this.#count(name.length + value.length + 64, 0);
    }
  }

  #linkTarget(entry: TarEntry, hidden: Map<TreeNode, Map<string, TreeNode>>): TreeNode {
    const parts = this.#split(entry.link);
    const base = parts.pop();
    const parent = base === undefined ? undefined : this.#resolve(parts, false);
    // A layer may hide a file and link to it at once: that is how a rename within a lower layer looks.
    const target =
      parent && base !== undefined
        ? (parent.children?.get(base) ?? hidden.get(parent)?.get(base))
        : undefined;
    if (!target) {
      throw new ImageError(
        'invalid-image',
        `${show(entry.path)} is a hard link to ${show(entry.link)}, which is not in the image`,
      );
    }
    if (target.type === 'directory') {
      throw new ImageError(
        'invalid-image',
        `${show(entry.path)} is a hard link to the folder ${show(entry.link)}`,
      );
    }
    return target;
  }

  /**
   * The folder that `parts` lead to, following symbolic links inside the tree. With `make`, missing folders are made;
   * otherwise undefined means that there is none.
   */
  #resolve(parts: readonly string[], make: boolean, forPath = ''): TreeNode | undefined {
    const trail: TreeNode[] = [this.root];
    const todo = parts.toReversed();
    let links = 0;
    let length = 0;
    for (let name = todo.pop(); name !== undefined; name = todo.pop()) {
      if (name === '' || name === '.') continue;
      if (name === '..') {
        // Only symbolic links can still say this; above the root is the root, as everywhere.
        if (trail.length > 1) trail.pop();
        continue;
      }
      const here = trail.at(-1) ?? this.root;
      let next = here.children?.get(name);
      if (!next) {
        if (!make) return undefined;
        length += name.length + 1;
        if (name.length > this.#limits.nameBytes || length > this.#limits.pathBytes) {
          throw new ImageError(
            'invalid-image',
            `${show(forPath)} leads through a symbolic link to a name that is too long`,
          );
        }
        next = folder();
        this.#count(name.length);
        here.children?.set(name, next);
      } else if (next.type === 'symlink') {
        links += 1;
        if (links > LINKS_MAX) {
          if (!make) return undefined;
          throw new ImageError(
            'invalid-image',
            `${show(forPath)} leads through more than ${LINKS_MAX} symbolic links`,
          );
        }
        if (next.link.startsWith('/')) trail.length = 1;
        todo.push(...next.link.split('/').toReversed());
        continue;
      } else if (next.type !== 'directory') {
        if (!make) return undefined;
        throw new ImageError(
          'invalid-image',
          `${show(forPath)} lies below ${show(name)}, which is not a folder`,
        );
      }
      trail.push(next);
    }
    return trail.at(-1);
  }

  /** The parts of an entry's name. Absolute names are taken as relative to the root; a way up is refused. */
  #split(path: string): string[] {
    if (path.length > this.#limits.pathBytes) {
      throw new ImageError(
        'invalid-image',
        `a name in the image has ${path.length} bytes, at most ${this.#limits.pathBytes} are allowed`,
      );
    }
    const parts = path.split('/').filter((part) => part !== '' && part !== '.');
    for (const part of parts) {
      if (part === '..')
        throw new ImageError(
          'invalid-image',
          `a layer has the name ${show(path)}, which leads out of its root folder`,
        );
      if (part.length > this.#limits.nameBytes) {
        throw new ImageError(
          'invalid-image',
          `a name in the image has ${part.length} bytes between slashes, at most ${this.#limits.nameBytes} are allowed: ${show(path)}`,
        );
      }
    }
    return parts;
  }

  /** One more name, with so many bytes in memory. */
  #count(bytes: number, nodes = 1): void {
    this.#metadata += bytes;
    this.#bound('metadataBytes', this.#metadata, 'bytes of names and attributes');
    this.#made += nodes;
    this.#bound('entries', this.#made, 'files and folders');
  }

  #bound(limit: 'entries' | 'metadataBytes', value: number, what: string): void {
    if (value > this.#limits[limit]) {
      throw new ImageError('too-large', `the image has more than ${this.#limits[limit]} ${what}`);
    }
  }
}

function leaf(type: TreeNode['type']): TreeNode {
  return {
    type,
    mode: 0o755,
    uid: 0,
    gid: 0,
    mtime: 0,
    size: 0,
    extents: [],
    layer: 0,
    link: '',
    devMajor: 0,
    devMinor: 0,
    names: 1,
  };
}

function folder(): TreeNode {
  return { ...leaf('directory'), children: new Map() };
}

function remember(
  hidden: Map<TreeNode, Map<string, TreeNode>>,
  parent: TreeNode,
  name: string,
  node: TreeNode,
): void {
  const names = hidden.get(parent) ?? new Map<string, TreeNode>();
  names.set(name, node);
  hidden.set(parent, names);
}
