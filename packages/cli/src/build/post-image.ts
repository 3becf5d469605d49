/** Sends build contexts, and with them the requests for builds. */
import { PassThrough } from 'node:stream';
import type { ReadableStream } from 'node:stream/web';
import type { ImageCreateResponse } from '@releap/contract';
import { type CallOptions, ReleapError, type Service } from '@releap/sdk';
import { CliError } from '../cli-error.ts';
import { Spinner } from '../output/spinner.ts';
import { size } from '../output/table.ts';
import { type Context, printable } from '../terminal.ts';
import type { BuildContext } from './context.ts';
import { encodeForm } from './form.ts';

export interface PostedBuild {
  name: string;
  docker: boolean;
  region?: string | undefined;
}

/** Of the service; it does not know the size of what it has not read. */
const CONTEXT_TOO_LARGE = /^context is too large: /;
const SIZE_MS = 5_000;
/** The response comes after the last byte. */
const UPLOAD_MS = 6 * 3_600_000;

/** @returns as soon as the build is queued */
export function postImage(
  context: Context,
  service: Service,
  folder: BuildContext,
  { name, docker, region }: PostedBuild,
): Promise<ImageCreateResponse> {
  const fields = { dockerfile: folder.dockerfile, docker: docker ? '1' : undefined, region };
  return postForm(context, service, folder, { name, ...fields }, (body, call) =>
    service.patient.createImage({ body }, call),
  );
}

/**
 * Sends a form with the packed folder as its part `context`, while it is packed.
 * @param post sends the encoded form
 */
export async function postForm<T>(
  context: Context,
  service: Service,
  folder: BuildContext,
  fields: Readonly<Record<string, string | undefined>> & { name: string },
  post: (body: ReadableStream<Uint8Array>, call: CallOptions) => Promise<T>,
): Promise<T> {
  const { name } = fields;
  using spinner = new Spinner(context, `${name}: sending the build context`);
  const archive = new PassThrough();
  const packed = folder.pack(archive, ({ files, bytes }) => {
    spinner.text = `${name}: sending the build context, ${files} files, ${size(bytes)}`;
  });
  const { contentType, body } = encodeForm(fields, {
    name: 'context',
    filename: 'context.tar',
    contentType: 'application/x-tar',
    content: archive,
  });
  const posted = post(body, { headers: { 'content-type': contentType }, timeoutMs: UPLOAD_MS })
    // What is not read any more must not wait for its reader.
    .finally(() => archive.destroy());
  const [answer, walk] = await Promise.allSettled([posted, packed]);
  if (answer.status === 'fulfilled') return answer.value;
  const refusal: unknown = answer.reason;
  const refused = refusal instanceof ReleapError && (refusal.status !== undefined || service.signal.aborted);
  // A file that cannot be read breaks the request off, and is the reason.
  if (walk.status === 'rejected' && !refused && isSystemError(walk.reason))
    throw new CliError(`the build context cannot be read: ${walk.reason.message}`, { cause: walk.reason });
  if (refusal instanceof ReleapError && CONTEXT_TOO_LARGE.test(refusal.message))
    throw new CliError(`${printable(refusal.message)}. ${await describeSize(folder)}`, { cause: refusal });
  throw refusal;
}

/** What it would send in all, as far as it is known within a few seconds. */
async function describeSize(folder: BuildContext): Promise<string> {
  const until = performance.now() + SIZE_MS;
  let [files, bytes, isWhole] = [0, 0, true];
  try {
    for await (const one of folder.sizes()) {
      files++;
      bytes += one;
      isWhole = performance.now() <= until;
      if (!isWhole) break;
    }
  } catch {
    isWhole = false;
  }
  return `The context has ${isWhole ? '' : 'more than '}${size(bytes)} in ${files} files`;
}

function isSystemError(error: unknown): error is NodeJS.ErrnoException {
  return error instanceof Error && 'syscall' in error;
}
