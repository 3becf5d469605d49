/** Built-in images by name: made once from their recipe, and again when that has changed. */
import { BUILTINS, BUILTIN_IMAGES } from './builtin/index.ts';
import { type BuildContext, buildBuiltin } from './image-builder.ts';
import { ImageError, show } from './image-error.ts';
import type { Alias, ImageFolder, RootImage } from './image-folder.ts';

export interface BuiltinImagesOptions {
  folder: ImageFolder;
  packagesDir: string | undefined;
  find: (digest: string) => Promise<RootImage | undefined>;
  /** What an alias has named since this process runs. */
  known: Map<string, string>;
  /** Runs with a work folder that only one process at a time has for the alias. */
  build: (alias: string, make: (context: BuildContext) => Promise<string>) => Promise<RootImage>;
}

/** @throws ImageError */
export async function ensureBuiltin(name: string, options: BuiltinImagesOptions): Promise<RootImage> {
  const { folder, packagesDir, find, known, build } = options;
  const builtin = BUILTINS.get(name);
  if (!builtin) {
    throw new ImageError(
      'not-found',
      `there is no built-in image ${show(name)}; there are ${BUILTIN_IMAGES.join(', ')}`,
    );
  }
  const alias = `builtin-${name}`;
  // The recipe changes only with the program, and so not while this process runs.
  const digest = known.get(alias);
  const image = digest === undefined ? undefined : await find(digest);
  if (image) return image;
  const recipe = await builtin.recipe(packagesDir);
  const current = async (): Promise<RootImage | undefined> => {
    const stored: Alias | undefined = await folder.readAlias(alias);
    const found = stored?.recipe === recipe ? await find(stored.digest) : undefined;
    if (found) known.set(alias, found.digest);
    return found;
  };
  const ready = await current();
  if (ready) return ready;
  return await build(alias, async (context) => {
    using _turn = await context.turn();
    const made = await current();
    if (made) return made.digest;
    const built = await buildBuiltin(context, builtin, packagesDir);
    await folder.writeAlias(context.work, alias, { digest: built, recipe });
    known.set(alias, built);
    return built;
  });
}
