/**
 * Builds the initramfs that every micro-VM boots from: the guest agent as `/init`, and the kernel modules it loads.
 *
 * The archive is a pure function of its inputs (a fixed order, no times, no owners), so equal inputs give equal
 * bytes and templates keyed by its digest stay valid. Written here rather than with `cpio`: no tool to install,
 * no root needed for the device nodes. Plain Node >= 18, no dependencies: set-up runs it before anything is there.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, open, readdir, readFile, rename, rm } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { gunzip, gzip } from 'node:zlib';

/**
 * The modules that the guest needs before it has its system disk, which holds all others (system-disk.mjs): each module
 * costs memory in every sandbox. A name may be missing only when the kernel has it built in.
 */
export const GUEST_MODULES = [
  'virtio_mmio',
  'virtio_console',
  'virtio_blk',
  'virtio_net',
  'virtio-rng',
  'squashfs',
  'overlay',
];

/** Far above any module that a guest loads. */
const MODULE_MAX_BYTES = 64 * 1024 * 1024;
const S_IFDIR = 0o040000;
const S_IFREG = 0o100000;
const S_IFCHR = 0o020000;

/** Kernel module names treat `-` and `_` as one. */
const canonical = (name) => name.replaceAll('-', '_');

/**
 * Names a module needs, from its `.modinfo` section. The section holds NUL-separated `key=value` strings; reading
 * it spares the `modules.dep` that only `depmod` makes, and a kernel package that is unpacked has never seen one.
 * @param {Buffer} file contents of a `.ko`
 * @returns {string[]}
 */
export function moduleDependencies(file) {
  for (const key of ['\0depends=', 'depends=']) {
    const at = file.indexOf(key);
    if (at < 0) continue;
    const start = at + key.length;
    const end = file.indexOf(0, start);
    const value = file.toString('latin1', start, end < 0 ? undefined : end);
    return value === '' ? [] : value.split(',');
  }
  throw new Error('kernel module without a depends= entry; is it compressed or truncated?');
}

async function* walk(folder) {
  const entries = await readdir(folder, { withFileTypes: true });
  for (const entry of entries) {
    const file = path.join(folder, entry.name);
    if (entry.isDirectory()) yield* walk(file);
    else yield file;
  }
}

/** How distributions compress modules, by the end of their names. Debian 12 does not, Debian 13 and Ubuntu do. */
const COMPRESSED = {
  '.gz': async (file) => await promisify(gunzip)(await readFile(file)),
  '.xz': (file) => decompress('xz', file),
  '.zst': (file) => decompress('zstd', file),
};

/** Contents of a module, without its compression: the guest has no program to undo it. */
export async function readModule(file) {
  const undo = COMPRESSED[path.extname(file)];
  return undo === undefined ? await readFile(file) : await undo(file);
}

async function decompress(tool, file) {
  try {
    const { stdout } = await promisify(execFile)(tool, ['-d', '-c', '-q', '--', file], {
      encoding: 'buffer',
      maxBuffer: MODULE_MAX_BYTES,
    });
    return stdout;
  } catch (error) {
    throw new Error(`kernel module ${file} cannot be unpacked with ${tool}: ${error.message}`, {
      cause: error,
    });
  }
}

/**
 * The modules and all they need, in an order in which each comes after its dependencies.
 * @param {string} kernelDir folder that holds `modules/` (any depth below it)
 * @param {string[]} wanted
 * @returns {Promise<{name: string, content: Buffer}[]>}
 */
export async function resolveModules(kernelDir, wanted = GUEST_MODULES) {
  const root = path.join(kernelDir, 'modules');
  const files = new Map();
  const builtIn = new Set();
  for await (const file of walk(root)) {
    const base = path.basename(file);
    const module = /^(.+)\.ko(?:\.gz|\.xz|\.zst)?$/.exec(base)?.[1];
    if (module !== undefined) files.set(canonical(module), file);
    else if (base === 'modules.builtin') {
      for (const line of (await readFile(file, 'utf8')).split('\n')) {
        if (line !== '') builtIn.add(canonical(path.basename(line.trim(), '.ko')));
      }
    }
  }
  const done = new Map();
  const visit = async (name, trail) => {
    const key = canonical(name);
    if (done.has(key) || (builtIn.has(key) && !files.has(key))) return;
    if (trail.includes(key))
      throw new Error(`kernel modules depend on each other: ${[...trail, key].join(' -> ')}`);
    const file = files.get(key);
    if (file === undefined) {
      throw new Error(
        `kernel module ${name} is neither in ${root} nor built in${trail.length > 0 ? ` (needed by ${trail.at(-1)})` : ''}`,
      );
    }
    const content = await readModule(file);
    for (const dependency of moduleDependencies(content)) await visit(dependency, [...trail, key]);
    done.set(key, { name: path.basename(file).replace(/\.(?:gz|xz|zst)$/, ''), content });
  };
  for (const name of wanted) await visit(name, []);
  return [...done.values()];
}

/** One "newc" record (see the kernel's Documentation/driver-api/early-userspace/buffer-format.rst). */
function record({ ino, name, mode, content = Buffer.alloc(0), major = 0, minor = 0, nlink = 1 }) {
  const nameBytes = Buffer.from(`${name}\0`);
  const fields = [ino, mode, 0, 0, nlink, 0, content.length, 0, 0, major, minor, nameBytes.length, 0];
  const header = Buffer.from(`070701${fields.map((field) => field.toString(16).padStart(8, '0')).join('')}`);
  const pad = (length) => Buffer.alloc((4 - (length % 4)) % 4);
  return [header, nameBytes, pad(header.length + nameBytes.length), content, pad(content.length)];
}

/**
 * @param {{path: string, mode: number, content?: Buffer, major?: number, minor?: number}[]} entries parents first
 * @returns {Buffer}
 */
function cpioArchive(entries) {
  const parts = [];
  let ino = 1;
  for (const { path: name, ...rest } of entries) {
    parts.push(...record({ ino, name, nlink: (rest.mode & 0o170000) === S_IFDIR ? 2 : 1, ...rest }));
    ino += 1;
  }
  parts.push(...record({ ino: 0, name: 'TRAILER!!!', mode: 0 }));
  const archive = Buffer.concat(parts);
  return Buffer.concat([archive, Buffer.alloc((512 - (archive.length % 512)) % 512)]);
}

/**
 * Writes the initramfs and publishes it by rename.
 *
 * Inside: `/init` (the agent), `/dev/console`, empty mount points, `/lib/modules/*.ko` and `/lib/modules/load.txt`
 * with one absolute path a line in load order.
 * @param {{kernelDir: string, agentPath: string, out: string, compress?: boolean}} options
 *   `compress` (default: whether `out` ends in `.gz`) trades file size for boot time
 * @returns {Promise<{sha256: string, bytes: number, modules: string[]}>}
 */
export async function buildInitramfs({ kernelDir, agentPath, out, compress = out.endsWith('.gz') }) {
  const [agent, modules] = await Promise.all([readFile(agentPath), resolveModules(kernelDir)]);
  if (agent.length < 4 || agent.readUInt32BE(0) !== 0x7f454c46)
    throw new Error(`${agentPath} is not an ELF executable`);
  const directory = (name) => ({ path: name, mode: S_IFDIR | 0o755 });
  const entries = [
    ...['dev', 'proc', 'sys', 'run', 'tmp', 'newroot', 'lib', 'lib/modules'].map(directory),
    { path: 'dev/console', mode: S_IFCHR | 0o600, major: 5, minor: 1 },
    { path: 'dev/null', mode: S_IFCHR | 0o666, major: 1, minor: 3 },
    { path: 'init', mode: S_IFREG | 0o755, content: agent },
    ...modules.map(({ name, content }) => ({ path: `lib/modules/${name}`, mode: S_IFREG | 0o644, content })),
    {
      path: 'lib/modules/load.txt',
      mode: S_IFREG | 0o644,
      content: Buffer.from(modules.map(({ name }) => `/lib/modules/${name}\n`).join('')),
    },
  ];
  const archive = cpioArchive(entries);
  const bytes = compress ? await promisify(gzip)(archive, { level: 6 }) : archive;
  await mkdir(path.dirname(out), { recursive: true });
  const partial = `${out}.${process.pid}.partial`;
  try {
    const file = await open(partial, 'w', 0o644);
    try {
      await file.writeFile(bytes);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(partial, out);
  } finally {
    await rm(partial, { force: true });
  }
  return {
    sha256: createHash('sha256').update(bytes).digest('hex'),
    bytes: bytes.length,
    modules: modules.map(({ name }) => name),
  };
}
