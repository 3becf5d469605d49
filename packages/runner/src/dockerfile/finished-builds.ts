/**
 * Builds whose steps a project's layer cache has: `<project>.builds` beside its disk. With the same Dockerfile, context and
 * base images, buildah would find each of its steps in the cache and give the same image, so that its micro-VM need not start.
 */
import { readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

export interface FinishedBuild {
  /** Of the project's build: its Dockerfile, context and options. */
  key: string;
  /** Names the result in the layer cache. */
  imageId: string;
  /** What its base images were, as the Dockerfile names them. */
  bases: { name: string; digest: string }[];
}

/** The most recent ones of a project. */
const BUILDS_MAX = 64;
const EXTENSION = 'builds';

/**
 * Whether a build of the Dockerfile may give something else although it, its context and its base images have not changed:
 * `ADD` fetches again what it names, which may be in a variable.
 */
export function mayFetch(dockerfile: string): boolean {
  return /^\s*(?:ONBUILD\s+)?ADD\s/im.test(dockerfile) && /:\/\/|git@|\$/.test(dockerfile);
}

export class FinishedBuilds {
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  async find(project: string, key: string): Promise<FinishedBuild | undefined> {
    return (await this.#read(project)).find((build) => build.key === key);
  }

  /** Only the build that has the project's cache may call it. */
  async add(project: string, build: FinishedBuild): Promise<void> {
    const others = (await this.#read(project)).filter(({ key }) => key !== build.key);
    const file = this.#file(project);
    await writeFile(`${file}.new`, JSON.stringify([build, ...others].slice(0, BUILDS_MAX)), { mode: 0o600 });
    await rename(`${file}.new`, file);
  }

  /** With the cache. */
  async remove(project: string): Promise<void> {
    const file = this.#file(project);
    for (const name of [file, `${file}.new`]) await rm(name, { force: true });
  }

  async #read(project: string): Promise<FinishedBuild[]> {
    try {
      const builds: unknown = JSON.parse(await readFile(this.#file(project), 'utf8'));
      return Array.isArray(builds) ? (builds as FinishedBuild[]) : [];
    } catch {
      // Absent, or not whole after the machine has stopped.
      return [];
    }
  }

  #file(project: string): string {
    return join(this.#folder, `${project}.${EXTENSION}`);
  }
}
