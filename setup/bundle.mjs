/**
 * Makes few files of libraries that consist of many small modules. Node finds, reads and links each module by itself: the 680
 * of TypeBox take each process of the service a quarter of a second and several MiB. The files stay where npm has installed
 * them, with the same exports: without this step everything works the same, slower.
 */
import { mkdir, mkdtemp, readdir, readFile, rename, rm } from 'node:fs/promises';
import path from 'node:path';

/** Chunks that entry points share, so that each module exists once in a process. */
const CHUNKS = 'bundled';

/**
 * Bundles what each export of an ES module package leads to, in its place, unless that has been done.
 * @param {string} folder of the package, absolute
 */
export async function bundlePackage(folder) {
  const { exports } = JSON.parse(await readFile(path.join(folder, 'package.json'), 'utf8'));
  const entries = Object.values(exports).map(({ import: file }) => path.join(folder, file));
  if ((await readFile(entries.at(-1), 'utf8')).includes(`/${CHUNKS}/`)) return;
  // Installed by npm: this module is loaded before that.
  const { build, stop } = await import('esbuild');
  const made = await mkdtemp(path.join(folder, '.bundle-'));
  try {
    await build({
      entryPoints: entries,
      outbase: folder,
      outdir: made,
      outExtension: { '.js': '.mjs' },
      chunkNames: `${CHUNKS}/[hash]`,
      bundle: true,
      splitting: true,
      format: 'esm',
      platform: 'node',
      target: 'node24',
      logLevel: 'error',
    });
    // Other processes may load the package meanwhile: entry points last, each by a rename, and nothing is removed.
    await mkdir(path.join(folder, CHUNKS), { recursive: true });
    for (const name of await readdir(path.join(made, CHUNKS)))
      await rename(path.join(made, CHUNKS, name), path.join(folder, CHUNKS, name));
    for (const entry of entries) await rename(path.join(made, path.relative(folder, entry)), entry);
  } finally {
    // Ends esbuild's process, which would stay as long as the service does.
    await stop();
    await rm(made, { recursive: true, force: true });
  }
}
