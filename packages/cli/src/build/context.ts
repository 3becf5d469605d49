/** Build contexts: a local folder as a tar stream, without what its .dockerignore leaves out. */
import { createHash } from 'node:crypto';
import { readFile, stat } from 'node:fs/promises';
import { hostname } from 'node:os';
import { basename, join, relative, resolve, sep } from 'node:path';
import type { Readable } from 'node:stream';
import dockerignore from '@balena/dockerignore';
import { type CopyCount, fileSizes, packFolder, type Select } from '@releap/sdk/node/archive';
import { usageError } from '../cli-error.ts';

export interface BuildContext {
  /** Path of the Dockerfile in the archive. */
  dockerfile: string;
  /** Writes the archive. */
  pack(target: NodeJS.WritableStream, onFile?: (count: CopyCount) => void): Promise<CopyCount>;
  /** Of the files of the folder that are in the archive, in bytes. */
  sizes(): AsyncGenerator<number>;
}

export interface ContextOptions {
  /** A path, or `-` for standard input. Default: `Dockerfile` in the folder. */
  file?: string | undefined;
  stdin: Readable | NodeJS.ReadableStream;
}

/** Name in the archive of a Dockerfile from elsewhere. */
const OUTSIDE = '.releap.Dockerfile';
const IGNORE_FILE = '.dockerignore';

/** @throws CliError for a folder or Dockerfile that cannot be read */
export async function openContext(folder: string, options: ContextOptions): Promise<BuildContext> {
  const found = await stat(folder).catch((error: unknown) => {
    throw cannotRead(folder, error);
  });
  if (!found.isDirectory())
    throw usageError(`${folder} is not a folder: name the folder with the build context`);
  const path = options.file === '-' ? undefined : (options.file ?? join(folder, 'Dockerfile'));
  const text = path === undefined ? await readAll(options.stdin) : await readText(path);
  const inside = path === undefined ? undefined : insideOf(folder, path);
  const dockerfile = inside ?? OUTSIDE;
  const ignored = await readIgnoreFile(folder, path);
  const select = selection(
    ignored?.text ?? '',
    new Set([dockerfile, IGNORE_FILE, ...(ignored?.names ?? [])]),
  );
  const extra =
    inside === undefined
      ? [
          { name: OUTSIDE, content: text },
          // No step of the build copies it with the rest of the folder.
          { name: ignored?.names[0] ?? IGNORE_FILE, content: `${ignored?.text ?? ''}\n${OUTSIDE}\n` },
        ]
      : [];
  return {
    dockerfile,
    pack: (target, onFile) => packFolder(folder, target, { onFile, select, extra }),
    sizes: () => fileSizes(folder, select),
  };
}

/** Where a file lies in the folder, with `/`; undefined when it lies elsewhere. */
function insideOf(folder: string, path: string): string | undefined {
  const below = relative(resolve(folder), resolve(path));
  return below === '' || below === '..' || below.startsWith(`..${sep}`)
    ? undefined
    : below.split(sep).join('/');
}

interface IgnoreFile {
  text: string;
  /** Its path in the folder. */
  names: string[];
}

/** `<Dockerfile>.dockerignore` beside the Dockerfile wins over `.dockerignore` of the folder. */
async function readIgnoreFile(
  folder: string,
  dockerfile: string | undefined,
): Promise<IgnoreFile | undefined> {
  const own = dockerfile === undefined ? undefined : `${dockerfile}.dockerignore`;
  for (const path of [own, join(folder, IGNORE_FILE)]) {
    if (path === undefined) continue;
    const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return undefined;
      throw cannotRead(path, error);
    });
    const name = insideOf(folder, path);
    if (text !== undefined) return { text, names: name === undefined ? [] : [name] };
  }
  return undefined;
}

/** @param always paths that are sent whatever the patterns say: the builder reads them */
function selection(patterns: string, always: ReadonlySet<string>): Select {
  // A pattern of its own, which the library would take for a file name.
  const lines = patterns.replace(/^\uFEFF/, '').split(/\r?\n/);
  const filter = dockerignore.default({ ignorecase: false }).add(lines);
  const exceptions = lines.some((line) => line.trimStart().startsWith('!'));
  const parents = new Set([...always].flatMap(foldersAbove));
  return (path, isFolder) => {
    if (always.has(path) || !filter.ignores(path)) return 'take';
    if (!isFolder) return 'leave';
    // A pattern with ! may take something in it.
    return exceptions || parents.has(path) ? 'look-inside' : 'leave';
  };
}

function foldersAbove(path: string): string[] {
  const parts = path.split('/').slice(0, -1);
  return parts.map((_, at) => parts.slice(0, at + 1).join('/'));
}

/** The image of a folder that is run: named after it, and distinct from those of other folders and machines. */
export function runImageName(folder: string): string {
  const path = resolve(folder);
  const name = basename(path)
    .replaceAll(/[^A-Za-z0-9._-]+/g, '-')
    .slice(0, 64);
  const place = createHash('sha256').update(`${hostname()}\n${path}`).digest('hex').slice(0, 8);
  return `run-${name}-${place}`;
}

async function readText(path: string): Promise<string> {
  return readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    throw error.code === 'ENOENT'
      ? usageError(`there is no Dockerfile ${path}: name another one with -f`)
      : cannotRead(path, error);
  });
}

async function readAll(stream: Readable | NodeJS.ReadableStream): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of stream) chunks.push(Buffer.from(chunk as Uint8Array));
  return Buffer.concat(chunks).toString('utf8');
}

function cannotRead(path: string, error: unknown): Error {
  return usageError(`${path} cannot be read: ${error instanceof Error ? error.message : String(error)}`);
}
