import type { BuiltinImage } from './builtin-image.ts';
import { busybox } from './busybox.ts';
import { debian } from './debian.ts';

/** The images that a runner makes by itself, by name. */
export const BUILTINS: ReadonlyMap<string, BuiltinImage> = new Map(
  [busybox, debian].map((image) => [image.name, image]),
);

export const BUILTIN_IMAGES: readonly string[] = [...BUILTINS.keys()];
