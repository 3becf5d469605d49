/** `/vms/:id/toolbox/files…`: upload, download, list, info, folder, delete. Bodies stream in both directions. */
import path from 'node:path';
import { Readable } from 'node:stream';
import multipart from '@fastify/multipart';
import { quote } from '@releap/contract';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import type { FileEntry } from '../guest/index.ts';
import { abortOnClose } from './execute.ts';
import type { FindGuest } from './find-guest.ts';
import { ToolboxError, toToolboxError } from './toolbox-error.ts';

const Path = Type.String({ minLength: 1, maxLength: 4095 });
const Mode = Type.Optional(Type.String({ pattern: '^[0-7]{1,4}$' }));

interface Route {
  Params: { id: string };
  Querystring: { path: string; mode?: string; recursive?: string };
}

/** As the compatibility protocol describes a file, with `type` and `link` added. */
interface FileInfo {
  name: string;
  isDir: boolean;
  size: number;
  /** RFC 3339; `modTime` is its older name. */
  modifiedAt: string;
  modTime: string;
  /** As `ls -l` shows it. */
  mode: string;
  /** Octal, four digits. */
  permissions: string;
  owner: string;
  group: string;
  type: FileEntry['type'];
  link?: string;
}

const TYPE_LETTER: Record<FileEntry['type'], string> = {
  file: '-',
  directory: 'd',
  symlink: 'l',
  fifo: 'p',
  socket: 's',
  device: 'c',
  other: '?',
};

function modeText(entry: FileEntry): string {
  const bits = Number.parseInt(entry.mode, 8);
  return `${TYPE_LETTER[entry.type]}${[8, 7, 6, 5, 4, 3, 2, 1, 0]
    .map((bit) => ((bits >> bit) & 1 ? ['x', 'w', 'r'][bit % 3] : '-'))
    .join('')}`;
}

function fileInfo(entry: FileEntry): FileInfo {
  // A guest may name any time; beyond what a Date can hold it is no time at all.
  const modified = new Date(entry.mtimeMs);
  const time = Number.isNaN(modified.getTime()) ? new Date(0).toISOString() : modified.toISOString();
  return {
    name: entry.name,
    isDir: entry.type === 'directory',
    size: entry.size,
    modifiedAt: time,
    modTime: time,
    mode: modeText(entry),
    permissions: entry.mode.padStart(4, '0'),
    owner: String(entry.uid),
    group: String(entry.gid),
    type: entry.type,
    ...(entry.link === undefined ? {} : { link: entry.link }),
  };
}

export async function registerFiles(app: FastifyInstance, find: FindGuest): Promise<void> {
  const query = Type.Object({ path: Path });
  const base = '/vms/:id/toolbox/files';
  const optional = Type.Object({ path: Type.Optional(Path) });

  app.get<Route>(base, { schema: { querystring: optional } }, async (request, reply) => {
    const guest = await find(request.params.id);
    const folder = (request.query as { path?: string }).path ?? '.';
    const { entries, truncated } = await guest.files.list(folder).catch(rethrow);
    if (truncated) reply.header('x-releap-truncated', 'true');
    return entries.map(fileInfo);
  });

  app.get<Route>(`${base}/info`, { schema: { querystring: query } }, async (request) => {
    const guest = await find(request.params.id);
    return fileInfo(await guest.files.stat(request.query.path).catch(rethrow));
  });

  app.get<Route>(`${base}/download`, { schema: { querystring: query } }, async (request, reply) => {
    const guest = await find(request.params.id);
    const file = request.query.path;
    const entry = await guest.files.stat(file, { follow: true }).catch(rethrow);
    if (entry.type !== 'file')
      throw new ToolboxError(400, `${file} is a ${entry.type}, only files can be downloaded`);
    const range = parseRange(request.headers.range, entry.size);
    if (range === null) {
      reply.header('content-range', `bytes */${entry.size}`);
      throw new ToolboxError(
        416,
        `the range ${quote(request.headers.range)} is outside of the ${entry.size} bytes of ${file}`,
      );
    }
    // Files of /proc have no size but content: those go without a length.
    const part = range ?? { offset: 0, ...(entry.size > 0 ? { length: entry.size } : {}) };
    const body = guest.files.read(file, { ...part, signal: abortOnClose(reply) });
    await firstBytes(body).catch(rethrow);
    reply
      .type('application/octet-stream')
      .header('accept-ranges', 'bytes')
      .header('content-disposition', disposition(path.posix.basename(file)));
    if (part.length !== undefined) reply.header('content-length', part.length);
    if (range !== undefined)
      reply
        .code(206)
        .header('content-range', `bytes ${range.offset}-${range.offset + range.length - 1}/${entry.size}`);
    return await reply.send(body);
  });

  await app.register(async (scope) => {
    // Whatever the body's type is, it is the file's bytes and passes through; only multipart has an envelope.
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser('*', (_request, payload, done) => done(null, payload));
    await scope.register(multipart, { limits: { files: 1, fields: 8, fileSize: Number.MAX_SAFE_INTEGER } });
    // SDKs announce a form in requests without a body.
    scope.delete<Route>(
      base,
      { schema: { querystring: Type.Object({ path: Path, recursive: Type.Optional(Type.String()) }) } },
      async (request, reply) => {
        const guest = await find(request.params.id);
        const recursive = request.query.recursive === 'true' || request.query.recursive === '1';
        await guest.files.remove(request.query.path, { recursive }).catch(rethrow);
        return await reply.code(204).send();
      },
    );
    scope.post<Route>(
      `${base}/folder`,
      { schema: { querystring: Type.Object({ path: Path, mode: Mode }) } },
      async (request, reply) => {
        const guest = await find(request.params.id);
        const { path: folder, mode } = request.query;
        await guest.files
          .makeDir(folder, { parents: true, ...(mode === undefined ? {} : { mode }) })
          .catch(rethrow);
        return await reply.code(201).send({ path: folder });
      },
    );
    scope.post<Route>(
      `${base}/upload`,
      { schema: { querystring: Type.Object({ path: Path, mode: Mode }) } },
      async (request, reply) => upload(request, reply, find),
    );
  });
}

async function upload(
  request: FastifyRequest<Route>,
  reply: FastifyReply,
  find: FindGuest,
): Promise<unknown> {
  const guest = await find(request.params.id);
  const { path: target, mode } = request.query;
  const options = { signal: abortOnClose(reply), ...(mode === undefined ? {} : { mode }) };
  const body = await source(request);
  try {
    return { path: target, bytes: await guest.files.write(target, body, options) };
  } catch (error) {
    if (body instanceof Readable) body.resume(); // the client must get to read the answer
    throw toToolboxError(error);
  }
}

async function source(request: FastifyRequest): Promise<Readable | Uint8Array> {
  if (!request.isMultipart()) return (request.body as Readable | undefined) ?? new Uint8Array();
  for await (const part of request.parts()) {
    if (part.type === 'file' && part.fieldname === 'file') return part.file;
    if (part.type === 'file') part.file.resume();
  }
  throw new ToolboxError(400, "the multipart body has no file field named 'file'");
}

function rethrow(error: unknown): never {
  throw toToolboxError(error);
}

/** Waits until there is something to send, so that a failure to open the file still has a status of its own. */
async function firstBytes(body: Readable): Promise<void> {
  // oxlint-disable-next-line promise/avoid-new -- three events, whichever is first
  await new Promise<void>((resolve, reject) => {
    body.once('readable', resolve);
    body.once('end', resolve);
    body.once('error', reject);
  });
}

interface ByteRange {
  offset: number;
  length: number;
}

/**
 * A `Range` header with one range of bytes (RFC 9110, 14.2). Any other header is ignored, as the RFC allows.
 * @returns null when no byte of the file is in it
 */
export function parseRange(header: string | undefined, size: number): ByteRange | null | undefined {
  const [, first = '', last = ''] = /^bytes=(\d*)-(\d*)$/.exec(header?.trim() ?? '') ?? [];
  if (first === '' && last === '') return undefined;
  // The last bytes of the file, or from one byte to another, including that.
  const from = first === '' ? Math.max(0, size - Number(last)) : Number(first);
  const to = first === '' || last === '' ? size - 1 : Math.min(size - 1, Number(last));
  if (first !== '' && last !== '' && Number(last) < Number(first)) return undefined;
  return from > to ? null : { offset: from, length: to - from + 1 };
}

function disposition(name: string): string {
  const plain = name.replaceAll(/[^\w. -]/g, '_');
  return `attachment; filename="${plain}"; filename*=UTF-8''${encodeURIComponent(name).replaceAll("'", '%27')}`;
}
