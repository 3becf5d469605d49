/**
 * Reads the form of a deploy. The build context goes into the blob store while it arrives; if the request is refused afterwards, no
 * row names that blob, and it is removed like all of those.
 */
import type { Readable } from 'node:stream';
import {
  badRequest,
  BOUNDS,
  LIMITS,
  quote,
  resolveFunctionForm,
  type FunctionFormFields,
  type PlatformLimits,
} from '@releap/contract';
import { readBounded } from '@releap/contract/read-bounded';
import type { BlobStore } from '../../storage/artifacts/blob-store.ts';
import type { Upload } from '../../platform/http/uploads.ts';
import { storeContext, type BuildContext } from '../../storage/images/context-upload.ts';
import type { Requested } from './deploy.ts';

interface FormOptions {
  blobs: BlobStore;
  platform: PlatformLimits;
  signal: AbortSignal;
}

const CONTEXT = 'context';
const TEXTS = ['name', 'dockerfile', 'config'] as const;

/** @throws 400 for the first violated rule; 503 without space for the context */
export async function readFunctionForm(
  upload: Upload,
  { blobs, platform, signal }: FormOptions,
): Promise<Requested> {
  if (upload.kind !== 'form') throw new Error(`an upload of kind ${upload.kind} must be refused before`);
  const seen = new Set<string>();
  const fields: FunctionFormFields = {};
  let context: BuildContext | undefined;
  for await (const part of upload.parts()) {
    const text = TEXTS.find((name) => name === part.name);
    if (text === undefined && part.name !== CONTEXT) continue;
    if (seen.has(part.name)) throw badRequest(`the form has the field ${quote(part.name)} more than once`);
    seen.add(part.name);
    if (text !== undefined)
      fields[text] = part.kind === 'field' ? part.value : await readText(part.name, part.stream);
    else if (part.kind === 'file')
      context = await storeContext(part.stream, upload, {
        blobs,
        maxBytes: LIMITS.functionContextBytes,
        signal,
      });
    else throw badRequest('context must be a file of the form, with a file name');
  }
  const { name, dockerfile, version } = resolveFunctionForm(fields, platform);
  if (context === undefined && 'path' in dockerfile)
    throw badRequest(
      'context is required: send the build context as a file of the form, a tar archive; or the text of a Dockerfile that needs none as dockerfile',
    );
  return {
    name,
    version,
    image: { type: 'dockerfile', dockerfile, ...(context === undefined ? {} : { context }) },
  };
}

/** A text that was sent as a file. */
async function readText(name: string, stream: Readable): Promise<string> {
  const most = BOUNDS.functionFieldBytes;
  const tooLarge = (): Error => badRequest(`${name} is too large: at most ${most} bytes are allowed`);
  return (await readBounded(stream, most, tooLarge)).toString('utf8');
}
