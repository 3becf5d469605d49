/**
 * Reads the form of a create of an image. The build context goes into the blob store while it arrives. A context that is
 * stored when the request is refused afterwards is a blob that no row names, and is removed like all of those.
 */
import type { Readable } from 'node:stream';
import {
  ApiError,
  badRequest,
  quote,
  resolveImageForm,
  resolveImageFormField,
  type ImageFormFields,
} from '@releap/contract';
import { BlobError, type BlobStore } from '../artifacts/blob-store.ts';
import type { Upload } from '../../platform/http/uploads.ts';

export interface BuildContext {
  digest: string;
  bytes: number;
}

export interface ImageUpload extends ImageFormFields {
  context: BuildContext;
}

export type Form = Extract<Upload, { kind: 'form' }>;

export interface UploadOptions {
  blobs: BlobStore;
  /** Largest context, in bytes. */
  maxBytes: number;
  signal: AbortSignal;
}

const CONTEXT = 'context';

/** @throws 400 for the first violated rule, in the order in which the parts arrive; 503 without space for the context */
export async function readImageForm(form: Form, options: UploadOptions): Promise<ImageUpload> {
  const seen = new Set<string>();
  let fields: Partial<ImageFormFields> = {};
  let context: BuildContext | undefined;
  for await (const part of form.parts()) {
    const known = part.name === CONTEXT || TEXT_FIELDS.has(part.name);
    if (!known) continue;
    if (seen.has(part.name)) throw badRequest(`the form has the field ${quote(part.name)} more than once`);
    seen.add(part.name);
    if (part.name === CONTEXT) {
      if (part.kind !== 'file') throw badRequest('context must be a file of the form, with a file name');
      context = await storeContext(part.stream, form, options);
    } else {
      if (part.kind === 'file') throw badRequest(`${part.name} must be a text field of the form, not a file`);
      fields = { ...fields, ...resolveImageFormField(part.name, part.value) };
    }
  }
  const resolved = resolveImageForm(fields);
  if (context === undefined)
    throw badRequest('context is required: send the build context as a file of the form, a tar archive');
  return { ...resolved, context };
}

const TEXT_FIELDS = new Set(['name', 'dockerfile', 'docker', 'region']);

/** @throws 400 for what is no tar archive, or too large; 503 without space */
export async function storeContext(
  stream: Readable,
  { bytes: sent }: Pick<Form, 'bytes'>,
  { blobs, maxBytes, signal }: UploadOptions,
): Promise<BuildContext> {
  try {
    const { digest, bytes } = await blobs.put(archiveOf(stream), { maxBytes, signal });
    return { digest, bytes };
  } catch (error) {
    if (!(error instanceof BlobError && error.failure === 'too-large')) throw error;
    const size = sent === undefined ? '' : `, and the request has ${sent}`;
    throw badRequest(
      `context is too large: at most ${maxBytes} bytes (${maxBytes / 2 ** 20} MiB) are allowed${size}. ` +
        'List files that the build does not need in .dockerignore',
      'request_too_large',
    );
  }
}

const BLOCK = 512;

/** The content, once its beginning is that of a tar archive, plain or gzip. */
async function* archiveOf(stream: Readable): AsyncGenerator<Uint8Array> {
  let head: Buffer | undefined = Buffer.alloc(0);
  try {
    for await (const chunk of stream as AsyncIterable<Buffer>) {
      if (head === undefined) {
        yield chunk;
        continue;
      }
      head = Buffer.concat([head, chunk]);
      if (head.length < BLOCK) continue;
      assertArchive(head);
      yield head;
      head = undefined;
    }
  } catch (error) {
    if (error instanceof ApiError) throw error;
    throw badRequest(`the form is invalid: ${error instanceof Error ? error.message : String(error)}`);
  }
  if (head === undefined) return;
  // A small archive is shorter than a block when it is compressed.
  if (head.subarray(0, GZIP.length).equals(GZIP)) yield head;
  else throw badRequest(`context must be a tar archive, but has only ${head.length} bytes`);
}

const GZIP = Buffer.from([0x1f, 0x8b]);

function assertArchive(head: Buffer): void {
  const block = head.subarray(0, BLOCK);
  if (block.subarray(0, GZIP.length).equals(GZIP)) return;
  // An archive without entries is all zeros.
  if (block.every((byte) => byte === 0)) return;
  const sum = block.reduce((total, byte, at) => total + (at >= 148 && at < 156 ? 0x20 : byte), 0);
  const stored = /^[ \0]*([0-7]+)/.exec(block.toString('latin1', 148, 156))?.[1];
  if (stored === undefined || Number.parseInt(stored, 8) !== sum)
    throw badRequest(
      'context must be a tar archive, plain or gzip, but its first block is not the header of an entry',
    );
}
