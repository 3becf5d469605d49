/**
 * Where a root file system comes from, as a request says it: a string, or an object with a `type`.
 * A string that has a `/` or a `:` is a registry reference; any other is the name of an image of the project.
 */
import { Type, type Static } from 'typebox';
import { badRequest, quote } from '../rules/errors.ts';
import { BOUNDS } from './limits.ts';
import { ImageReferenceError, parseImageReference } from '../rules/image-reference.ts';

const IMAGE_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;

export const RegistrySource = Type.Object({
  type: Type.Literal('registry'),
  ref: Type.String({ description: 'Registry reference, as in `node:20` or `registry.example.com/app:1.0`.' }),
});
export const NamedSource = Type.Object({
  type: Type.Literal('named'),
  name: Type.String({ description: 'Name of an image of this project.' }),
});
export const DockerfileSource = Type.Object({
  type: Type.Literal('dockerfile'),
  dockerfile: Type.String({ description: 'The text of a Dockerfile that needs no build context.' }),
});
export const SnapshotSource = Type.Object({
  type: Type.Literal('snapshot'),
  name: Type.String({ description: 'Name of a snapshot of this project.' }),
});

export const ImageSource = Type.Union([RegistrySource, NamedSource, DockerfileSource, SnapshotSource]);
/** Checked. `ref` stays as it was given: `parseImageReference` reads it. */
export type ImageSource = Static<typeof ImageSource>;

const EXPECTED =
  'an image name, a registry reference (it has a "/" or a ":"), or an object ' +
  '{type: "registry", ref}, {type: "named", name}, {type: "dockerfile", dockerfile} or {type: "snapshot", name}';

/** The field `image` of a create. */
export const ImageInput = Type.Union([Type.String(), ...ImageSource.anyOf], {
  expected: EXPECTED,
  description: 'A bare string with a `/` or a `:` is a registry reference, any other an image name.',
});

/** Throws a 400 naming `field` on what is not a source. Says nothing about whether the thing exists. */
export function parseImageSource(input: unknown, field = 'image'): ImageSource {
  if (typeof input === 'string') {
    if (input === '') throw badRequest(`${field} must be ${EXPECTED}, but was empty`);
    return /[/:]/.test(input)
      ? { type: 'registry', ref: checkReference(input, field) }
      : { type: 'named', name: checkImageName(input, field) };
  }
  if (input === null || typeof input !== 'object' || Array.isArray(input))
    throw badRequest(`${field} must be ${EXPECTED}, but was ${quote(input)}`);
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
      return { type: 'dockerfile', dockerfile: dockerfileText(text('dockerfile'), field) };
    default:
      throw badRequest(
        `${field}.type must be one of "registry", "named", "dockerfile", "snapshot", but was ${quote(source['type'])}`,
      );
  }
}

/** Names of images: 1 to 128 characters, and none that would make the name look like a reference. */
export function checkImageName(name: string, field = 'name'): string {
  if (name.length <= BOUNDS.imageNameChars && IMAGE_NAME.test(name)) return name;
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

function dockerfileText(text: string, field: string): string {
  if (text.length <= BOUNDS.dockerfileChars) return text;
  throw badRequest(
    `${field}.dockerfile has ${text.length} characters; at most ${BOUNDS.dockerfileChars} are allowed`,
  );
}
