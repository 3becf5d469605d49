/** Resolves the create of an image, and the source of a root file system. Pure. */
import { BOUNDS } from '../../wire/platform/limits.ts';
import {
  FORM_TRUE,
  IMAGE_SOURCE_FORM,
  type ImageCreateRequest,
  type ImageSource,
} from '../../wire/storage/image.ts';
import { badRequest, quote } from '../errors.ts';
import { ImageReferenceError, parseImageReference } from './image-reference.ts';

const IMAGE_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;

/** Throws a 400 naming `field` for an invalid source. Does not check whether it exists. */
export function parseImageSource(input: unknown, field = 'image'): ImageSource {
  if (typeof input === 'string') {
    if (input === '') throw badRequest(`${field} must be ${IMAGE_SOURCE_FORM}, but was empty`);
    return /[/:]/.test(input)
      ? { type: 'registry', ref: checkReference(input, field) }
      : { type: 'named', name: checkImageName(input, field) };
  }
  if (input === null || typeof input !== 'object' || Array.isArray(input))
    throw badRequest(`${field} must be ${IMAGE_SOURCE_FORM}, but was ${quote(input)}`);
  const source = input as Record<string, unknown>;
  const text = (key: string): string => textOf(source, key, field);
  switch (Object.hasOwn(source, 'type') ? source['type'] : undefined) {
    case 'registry':
      return { type: 'registry', ref: checkReference(text('ref'), `${field}.ref`) };
    case 'named':
      return { type: 'named', name: checkImageName(text('name'), `${field}.name`) };
    case 'snapshot':
      return { type: 'snapshot', name: text('name') };
    case 'dockerfile':
      return {
        type: 'dockerfile',
        dockerfile: dockerfileText(text('dockerfile'), field),
        ...(isTrueIn(source, 'docker', field) && { docker: true }),
      };
    default:
      throw badRequest(
        `${field}.type must be one of "registry", "named", "dockerfile", "snapshot", but was ${quote(source['type'])}`,
      );
  }
}

export const isImageName = (text: string): boolean =>
  text.length <= BOUNDS.imageNameChars && IMAGE_NAME.test(text);

/** Names of images: 1 to 128 characters, none of which could make the name a reference. */
export function checkImageName(name: string, field = 'name'): string {
  if (isImageName(name)) return name;
  throw badRequest(
    `${field} must be 1 to ${BOUNDS.imageNameChars} characters of A-Z a-z 0-9 . _ - and start with a letter or digit, but was ${quote(name)}`,
  );
}

function checkReference(ref: string, field: string): string {
  try {
    parseImageReference(ref);
    return ref;
  } catch (error) {
    if (error instanceof ImageReferenceError) throw badRequest(`${field}: ${error.message}`);
    throw error;
  }
}

function textOf(source: Record<string, unknown>, key: string, field: string): string {
  const value = Object.hasOwn(source, key) ? source[key] : undefined;
  if (typeof value === 'string' && value !== '') return value;
  throw badRequest(
    value === undefined || value === null
      ? `${field}.${key} is required with type ${quote(source['type'])}`
      : `${field}.${key} must be a non-empty string, but was ${quote(value)}`,
  );
}

function isTrueIn(source: Record<string, unknown>, key: string, field: string): boolean {
  const value = Object.hasOwn(source, key) ? source[key] : undefined;
  if (value === undefined || value === null) return false;
  if (typeof value === 'boolean') return value;
  throw badRequest(`${field}.${key} must be true or false, but was ${quote(value)}`);
}

function dockerfileText(text: string, field: string): string {
  if (text.length <= BOUNDS.dockerfileChars) return text;
  throw badRequest(
    `${field}.dockerfile has ${text.length} characters; at most ${BOUNDS.dockerfileChars} are allowed`,
  );
}

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
