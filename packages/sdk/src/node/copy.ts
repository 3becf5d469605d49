/** Files and folders between this machine and a sandbox. */
import { createReadStream, createWriteStream, type Stats } from 'node:fs';
import { mkdir, rename, rm, stat } from 'node:fs/promises';
import { basename, join, posix } from 'node:path';
import { PassThrough, Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { ReadableStream } from 'node:stream/web';
import { asFailure, ReleapError } from '../error.ts';
import { downloadFile, statRemote, uploadFile } from '../files.ts';
import type { Toolbox } from '../toolbox.ts';
import { type CopyCount, packFolder, unpackFolder } from './archive.ts';
import { streamProcess } from './process.ts';

/** A path, or a stream with the content of one file. */
export type LocalSource = { path: string } | { stream: NodeJS.ReadableStream };
export type LocalTarget = { path: string } | { stream: NodeJS.WritableStream };

export interface RemoteEnd {
  toolbox: Toolbox;
  path: string;
  /** The path and what it is in, for people. */
  shown: string;
}

/** Called after each file of a folder, with the sum so far. */
type OnFile = (count: CopyCount) => void;

/** @throws ReleapError when there is nothing at that path */
export async function statLocal(path: string): Promise<Stats> {
  return await stat(path).catch((error: unknown) => localError(error, path));
}

/** Copies a local file or folder there, or a stream as a file. @throws ReleapError for what cannot be copied there */
export async function copyIn(
  { toolbox, path, shown }: RemoteEnd,
  from: LocalSource,
  onFile?: OnFile,
): Promise<CopyCount> {
  if ('stream' in from) {
    if (path.endsWith('/'))
      throw new ReleapError('invalid', 'a stream has no name: write the whole path of the file');
    const counted = counter();
    const sent = pipeline(from.stream, counted.stream);
    await Promise.all([uploadFile(toolbox, path, webStream(counted.stream)), sent]);
    return { files: 1, bytes: counted.bytes() };
  }
  const stats = await statLocal(from.path);
  const there = await statRemote(toolbox, path);
  if (stats.isDirectory()) {
    const contents = /(?:^|\/)\.$/.test(from.path);
    if (there !== null && !there.directory)
      throw new ReleapError('failed', `${shown} is a file, and ${from.path} a folder`);
    const folder = there?.directory && !contents ? posix.join(path, localName(from.path)) : path;
    return uploadFolder(toolbox, from.path, folder, onFile);
  }
  if (!stats.isFile()) throw new ReleapError('failed', `${from.path} is neither a file nor a folder`);
  const name = there?.directory || path.endsWith('/') ? posix.join(path, localName(from.path)) : path;
  await uploadFile(toolbox, name, webStream(createReadStream(from.path)), {
    bytes: stats.size,
    mode: stats.mode & 0o777,
  });
  return { files: 1, bytes: stats.size };
}

async function uploadFolder(
  toolbox: Toolbox,
  from: string,
  folder: string,
  onFile?: OnFile,
): Promise<CopyCount> {
  const archive = new PassThrough();
  const packed = packFolder(from, archive, { onFile });
  // Whichever fails first ends the other; both are awaited, so that neither rejection is left alone.
  const [count] = await Promise.all([
    packed,
    runArchiver(toolbox, 'mkdir -p "$1" && exec tar -xof - -C "$1"', folder, archive, null).catch(
      (error: unknown) => {
        archive.destroy();
        throw error;
      },
    ),
  ]);
  return count;
}

/**
 * Copies a file or folder to a local place, or a file to a stream, which is not ended.
 * @throws ReleapError for what cannot be copied there
 */
export async function copyOut(
  { toolbox, path, shown }: RemoteEnd,
  to: LocalTarget,
  onFile?: OnFile,
): Promise<CopyCount> {
  const there = await statRemote(toolbox, path);
  if (there === null) throw new ReleapError('missing', `there is no ${shown}`);
  if ('stream' in to) {
    if (there.directory)
      throw new ReleapError('invalid', `${shown} is a folder: name a local folder to copy it to`);
    const counted = counter();
    const body = await downloadFile(toolbox, path);
    await pipeline(body, counted.stream, to.stream, { end: false }).catch(cut(toolbox));
    return { files: 1, bytes: counted.bytes() };
  }
  const local = await stat(to.path).catch(() => null);
  const name = posix.basename(posix.resolve('/', path));
  if (there.directory) {
    if (local && !local.isDirectory())
      throw new ReleapError('failed', `${to.path} is a file, and ${shown} a folder`);
    const contents = /(?:^|\/)\.$/.test(path);
    const folder = local && !contents ? join(to.path, name) : to.path;
    return downloadFolder(toolbox, path, folder, onFile);
  }
  const file = local?.isDirectory() || to.path.endsWith('/') ? join(to.path, name) : to.path;
  return { files: 1, bytes: await downloadTo(toolbox, path, file) };
}

/** Written beside its place and renamed: a copy that breaks off leaves the old file as it was. */
async function downloadTo(toolbox: Toolbox, path: string, file: string): Promise<number> {
  const partial = `${file}.rlp-${process.pid}`;
  const counted = counter();
  const body = await downloadFile(toolbox, path);
  try {
    const sink = createWriteStream(partial, { flags: 'wx' });
    await pipeline(body, counted.stream, sink).catch(cut(toolbox, partial));
    await rename(partial, file).catch((error: unknown) => localError(error, file));
  } finally {
    await rm(partial, { force: true });
  }
  return counted.bytes();
}

async function downloadFolder(
  toolbox: Toolbox,
  path: string,
  folder: string,
  onFile?: OnFile,
): Promise<CopyCount> {
  await mkdir(folder, { recursive: true }).catch((error: unknown) => localError(error, folder));
  const archive = new PassThrough();
  const [count] = await Promise.all([
    unpackFolder(archive, folder, onFile).catch((error: unknown) =>
      error instanceof ReleapError ? Promise.reject(error) : localError(error, folder),
    ),
    runArchiver(toolbox, 'exec tar -cf - -C "$1" .', path, null, archive).then(
      () => archive.end(),
      (error: unknown) => {
        archive.destroy(error as Error);
        throw error;
      },
    ),
  ]);
  return count;
}

/** tar inside the sandbox, with the folder as `$1`; what it complains of becomes the error. */
async function runArchiver(
  toolbox: Toolbox,
  script: string,
  folder: string,
  stdin: PassThrough | null,
  stdout: PassThrough | null,
): Promise<void> {
  const complaints = new PassThrough();
  let text = '';
  complaints.on('data', (chunk: Buffer) => {
    if (text.length < 2000) text += chunk.toString('utf8');
  });
  const sink = stdout ?? new PassThrough().resume();
  const end = await streamProcess(
    toolbox,
    { type: 'start', argv: ['/bin/sh', '-c', script, 'sh', folder], user: '0' },
    { stdin, stdout: sink, stderr: complaints },
  );
  if (end.exitCode === 0) return;
  const why =
    end.exitCode === 127 ? 'folders need /bin/sh and tar in the sandbox' : text.trim().slice(0, 500);
  throw new ReleapError('failed', `tar in the sandbox failed (exit code ${end.exitCode}): ${why}`);
}

function webStream(stream: Readable): ReadableStream<Uint8Array> {
  return Readable.toWeb(stream) as ReadableStream<Uint8Array>;
}

function counter(): { stream: Transform; bytes: () => number } {
  let bytes = 0;
  const stream = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      bytes += chunk.length;
      done(null, chunk);
    },
  });
  return { stream, bytes: () => bytes };
}

function localName(path: string): string {
  return basename(path === '.' || path.endsWith('/..') || path === '..' ? join(process.cwd(), path) : path);
}

function cut(toolbox: Toolbox, local?: string): (error: unknown) => never {
  return (error) => {
    const { code } = error as NodeJS.ErrnoException;
    if (local !== undefined && /^E[A-Z]+$/.test(code ?? '') && code !== 'ECONNRESET')
      return localError(error, local);
    throw asFailure(error, toolbox.signal, new URL(toolbox.url));
  };
}

const LOCAL_REASONS: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such file or folder',
  EACCES: 'permission denied',
  EPERM: 'not permitted',
  ENOSPC: 'no space left on the device',
  EISDIR: 'it is a folder',
  ENOTDIR: 'a part of the path is not a folder',
  EROFS: 'the file system is read-only',
};

function localError(error: unknown, path: string): never {
  const { code, message } = error as NodeJS.ErrnoException;
  throw new ReleapError('failed', `${path}: ${LOCAL_REASONS[code ?? ''] ?? message}`, { cause: error });
}
