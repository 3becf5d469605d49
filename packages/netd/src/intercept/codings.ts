/** Content codings (RFC 9110 section 8.4.1): bodies are opened to replace in them. */
import type { Transform } from 'node:stream';
import { promisify } from 'node:util';
import {
  brotliCompress,
  brotliDecompress,
  constants,
  createBrotliCompress,
  createBrotliDecompress,
  createDeflate,
  createGunzip,
  createGzip,
  createInflate,
  createZstdCompress,
  createZstdDecompress,
  deflate,
  gunzip,
  gzip,
  inflate,
  zstdCompress,
  zstdDecompress,
} from 'node:zlib';

export interface Coding {
  name: string;
  decoder(): Transform;
  encoder(): Transform;
  /** The content, also of a body that is cut off. Rejects when it is not of this coding, or longer than `max` bytes. */
  decode(body: Buffer, max: number): Promise<Buffer>;
  encode(content: Buffer): Promise<Buffer>;
}

/** The default, 11, takes seconds for a megabyte. */
const BROTLI = { params: { [constants.BROTLI_PARAM_QUALITY]: 4 } };

const GZIP: Coding = {
  name: 'gzip',
  decoder: () => createGunzip(),
  encoder: () => createGzip(),
  decode: (body, max) =>
    promisify(gunzip)(body, { maxOutputLength: max, finishFlush: constants.Z_SYNC_FLUSH }),
  encode: (content) => promisify(gzip)(content),
};
const DEFLATE: Coding = {
  name: 'deflate',
  decoder: () => createInflate(),
  encoder: () => createDeflate(),
  decode: (body, max) =>
    promisify(inflate)(body, { maxOutputLength: max, finishFlush: constants.Z_SYNC_FLUSH }),
  encode: (content) => promisify(deflate)(content),
};
const BR: Coding = {
  name: 'br',
  decoder: () => createBrotliDecompress(),
  encoder: () => createBrotliCompress(BROTLI),
  decode: (body, max) =>
    promisify(brotliDecompress)(body, {
      maxOutputLength: max,
      finishFlush: constants.BROTLI_OPERATION_FLUSH,
    }),
  encode: (content) => promisify(brotliCompress)(content, BROTLI),
};
const ZSTD: Coding = {
  name: 'zstd',
  decoder: () => createZstdDecompress(),
  encoder: () => createZstdCompress(),
  decode: (body, max) =>
    promisify(zstdDecompress)(body, { maxOutputLength: max, finishFlush: constants.ZSTD_e_flush }),
  encode: (content) => promisify(zstdCompress)(content),
};
const CODINGS: Readonly<Record<string, Coding>> = {
  gzip: GZIP,
  'x-gzip': GZIP,
  deflate: DEFLATE,
  br: BR,
  zstd: ZSTD,
};

/** `plain` without a coding, `unknown` for several codings, and for those that cannot be opened. */
export function codingOf(contentEncoding: string | undefined): Coding | 'plain' | 'unknown' {
  const name = contentEncoding?.trim().toLowerCase() ?? '';
  if (name === '' || name === 'identity') return 'plain';
  return CODINGS[name] ?? 'unknown';
}

/** Whether this is the error of a decoder: the body is not of its coding. */
export function isCodingError(error: unknown): boolean {
  return /^(?:Z_|ERR__ERROR_|ZSTD_error_)/.test((error as { code?: string }).code ?? '');
}
