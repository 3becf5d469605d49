/** Parses the source of a root file system. */
import { type ImageSource, IMAGE_SOURCE_FORM } from '../wire/storage/image.ts';
import { BOUNDS } from '../wire/platform/limits.ts';
import { badRequest } from './errors.ts';
import { ImageReferenceError, parseImageReference } from './image-reference.ts';
import { quote } from './quote.ts';

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
        ...(isTrue(source, 'docker', field) && { docker: true }),
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

function isTrue(source: Record<string, unknown>, key: string, field: string): boolean {
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
