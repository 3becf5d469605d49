import type { BuiltinImage } from './builtin-image.ts';
import { builder } from './builder.ts';
import { busybox } from './busybox.ts';
import { debian } from './debian.ts';

/** The images that users can name. */
const PUBLIC = [busybox, debian];

/** The images that a runner makes by itself, by name. */
export const BUILTINS: ReadonlyMap<string, BuiltinImage> = new Map(
  [...PUBLIC, builder].map((image) => [image.name, image]),
);

export const BUILTIN_IMAGES: readonly string[] = PUBLIC.map(({ name }) => name);
