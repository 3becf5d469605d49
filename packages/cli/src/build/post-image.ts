/** Sends a build context, and with it the request for a build. */
import { PassThrough } from 'node:stream';
import type { ImageCreateResponse } from '@releap/contract';
import { CliError } from '../cli-error.ts';
import type { Service } from '../client/service.ts';
import { Spinner } from '../output/spinner.ts';
import { size } from '../output/table.ts';
import type { Context } from '../terminal.ts';
import type { BuildContext } from './context.ts';
import { encodeForm } from './form.ts';

export interface PostedBuild {
  name: string;
  docker: boolean;
  region?: string | undefined;
}

/** The response comes after the last byte. */
const UPLOAD_MS = 6 * 3_600_000;

/** @returns as soon as the build is queued */
export async function postImage(
  context: Context,
  service: Service,
  folder: BuildContext,
  { name, docker, region }: PostedBuild,
): Promise<ImageCreateResponse> {
  using spinner = new Spinner(context, `${name}: sending the build context`);
  const archive = new PassThrough();
  const packed = folder.pack(archive, ({ files, bytes }) => {
    spinner.text = `${name}: sending the build context, ${files} files, ${size(bytes)}`;
  });
  const { contentType, body } = encodeForm(
    { name, dockerfile: folder.dockerfile, docker: docker ? '1' : undefined, region },
    { name: 'context', filename: 'context.tar', contentType: 'application/x-tar', content: archive },
  );
  const posted = service.patient
    .createImage({ body }, { headers: { 'content-type': contentType }, timeoutMs: UPLOAD_MS })
    // What is not read any more must not wait for its reader.
    .finally(() => archive.destroy());
  const [answer, walk] = await Promise.allSettled([posted, packed]);
  if (answer.status === 'fulfilled') return answer.value;
  const refusal: unknown = answer.reason;
  const refused = refusal instanceof CliError && (refusal.status !== undefined || service.signal.aborted);
  // A file that cannot be read breaks the request off, and is the reason.
  if (walk.status === 'rejected' && !refused && isSystemError(walk.reason))
    throw new CliError(`the build context cannot be read: ${walk.reason.message}`, { cause: walk.reason });
  throw refusal;
}

function isSystemError(error: unknown): error is NodeJS.ErrnoException {
  return error instanceof Error && 'syscall' in error;
}
