/** Resolves the create of an image. Pure. */
import type { ImageSource } from '../wire/image-source.ts';
import type { ImageCreateRequest } from '../wire/image.ts';
import { badRequest } from './errors.ts';
import { checkImageName, parseImageSource } from './image-source.ts';
import { quote } from './quote.ts';

/** A create of an image after every rule that needs no lookup. */
export interface ResolvedImage {
  name: string;
  source: ImageSource & { type: 'registry' };
  docker: boolean;
  /** Null: the default. */
  region: string | null;
}

/** `body` has passed `ImageCreateRequest`. Throws a 400 for the first violated rule. */
export function resolveImageCreate(body: ImageCreateRequest): ResolvedImage {
  const name = checkImageName(body.name);
  const source = parseImageSource(body.source, 'source');
  if (source.type !== 'registry')
    throw badRequest(
      source.type === 'dockerfile'
        ? 'source of type "dockerfile" is not available yet in this version: use {type: "registry", ref}'
        : `source must be a registry reference, {type: "registry", ref}, but its type was ${quote(source.type)}`,
    );
  return { name, source, docker: body.docker ?? false, region: body.region || null };
}
