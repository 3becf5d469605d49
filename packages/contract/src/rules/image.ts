/** Resolves the create of an image. Pure. */
import { type ImageSource, FORM_TRUE, type ImageCreateRequest } from '../wire/storage/image.ts';
import { BOUNDS } from '../wire/platform/limits.ts';
import { badRequest } from './errors.ts';
import { checkImageName, parseImageSource } from './image-source.ts';
import { quote } from './quote.ts';

/** A create of an image after every rule that needs no lookup. */
export interface ResolvedImage {
  name: string;
  source: ImageSource & { type: 'registry' | 'dockerfile' };
  docker: boolean;
  /** Null: the default. */
  region: string | null;
}

/** `body` has passed `ImageCreateRequest`. Throws a 400 for the first violated rule. */
export function resolveImageCreate(body: ImageCreateRequest): ResolvedImage {
  const name = checkImageName(body.name);
  const parsed = parseImageSource(body.source, 'source');
  const { docker = false, ...source } = parsed.type === 'dockerfile' ? parsed : { ...parsed, docker: false };
  if (source.type !== 'registry' && source.type !== 'dockerfile')
    throw badRequest(
      `source must be a registry reference, {type: "registry", ref} or {type: "dockerfile", dockerfile}, but its type was ${quote(source.type)}`,
    );
  return { name, source, docker: (body.docker ?? false) || docker, region: body.region || null };
}

/** The text fields of a create of an image as a form. */
export interface ImageFormFields {
  name: string;
  /** Path in the context, relative to its root. */
  dockerfile: string;
  docker: boolean;
  /** Null: the default. */
  region: string | null;
}

const FORM_FALSE = ['', '0', 'false', 'no', 'off'];

const FORM_FIELDS: Readonly<Record<string, (value: string) => Partial<ImageFormFields>>> = {
  name: (value) => ({ name: checkImageName(value) }),
  dockerfile: (value) => (value === '' ? {} : { dockerfile: checkDockerfilePath(value) }),
  docker: (value) => ({ docker: isTrue('docker', value) }),
  region: (value) => ({ region: value || null }),
};

/** The value of one field; nothing for an unknown one. Throws a 400 that names it. */
export function resolveImageFormField(name: string, value: string): Partial<ImageFormFields> {
  return Object.hasOwn(FORM_FIELDS, name) ? (FORM_FIELDS[name]?.(value) ?? {}) : {};
}

/** The fields of a whole form, with their defaults. Throws a 400 when the name is missing. */
export function resolveImageForm(fields: Partial<ImageFormFields>): ImageFormFields {
  const { name } = fields;
  if (name === undefined) throw badRequest('name is required: send it as a text field of the form');
  return { dockerfile: 'Dockerfile', docker: false, region: null, ...fields, name };
}

function isTrue(field: string, value: string): boolean {
  const text = value.toLowerCase();
  if ((FORM_TRUE as readonly string[]).includes(text)) return true;
  if (FORM_FALSE.includes(text)) return false;
  throw badRequest(
    `${field} must be one of ${FORM_TRUE.join(', ')}, 0, false, no, off, but was ${quote(value)}`,
  );
}

/** A path that stays in the context. Throws a 400. */
export function checkDockerfilePath(path: string): string {
  if (path.length > BOUNDS.dockerfilePathChars)
    throw badRequest(
      `dockerfile has ${path.length} characters; at most ${BOUNDS.dockerfilePathChars} are allowed`,
    );
  const parts = path.split('/').filter((part) => part !== '' && part !== '.');
  if (path.startsWith('/') || path.includes('\0') || parts.includes('..') || parts.length === 0)
    throw badRequest(
      `dockerfile must be the path of a file in the context, relative to its root and without "..", but was ${quote(path)}`,
    );
  return parts.join('/');
}
