/** The programs of this installation, as set-up has bundled them (setup/programs.mjs). */
import { existsSync, readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const INSTALLATION = fileURLToPath(new URL('../../../../', import.meta.url));
const FOLDER = 'build/programs';
/** Where the bundles are, absolute. */
export const PROGRAMS = path.join(INSTALLATION, FOLDER);

interface Manifest {
  /** File in `PROGRAMS`, by source in the repository. */
  programs: Record<string, string>;
  /** Time of the last change, in ms, of each source; none where an installation has no sources. */
  inputs: Record<string, number>;
}

let bundles: Record<string, string> | undefined;

/** @param source absolute path of a program @returns that of its bundle, or `source` when there is none of its present sources */
export function programOf(source: string): string {
  bundles ??= currentBundles(INSTALLATION);
  const bundle = path.join(PROGRAMS, bundles[path.relative(INSTALLATION, source)] ?? '-');
  // Later set-ups remove it in the end.
  return existsSync(bundle) ? bundle : source;
}

/** @param installation absolute, with a slash at its end @returns the bundles that are of its present sources: all or none */
export function currentBundles(installation: string): Record<string, string> {
  try {
    const text = readFileSync(path.join(installation, FOLDER, 'programs.json'), 'utf8');
    const { programs, inputs } = JSON.parse(text) as Manifest;
    const isCurrent = Object.entries(inputs).every(
      ([file, time]) => statSync(path.join(installation, file)).mtimeMs === time,
    );
    return isCurrent ? programs : {};
  } catch {
    return {};
  }
}
