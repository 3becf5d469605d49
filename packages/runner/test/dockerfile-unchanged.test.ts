/** Builds that need no micro-VM, as nothing has changed since the last one. */
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { test } from 'node:test';
import { newUuid, type DockerfileRoot } from '@releap/contract';
import { temporaryFolder } from '@releap/testing/oci';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { pino } from 'pino';
import { EmptyExt4Store } from '../src/disk/empty-ext4.ts';
import { BuildCaches } from '../src/dockerfile/build-caches.ts';
import { DockerfileBuilds, type DockerfileBuildsOptions } from '../src/dockerfile/dockerfile-builds.ts';
import { mayFetch } from '../src/dockerfile/finished-builds.ts';
import { dockerfileAlias } from '../src/image/dockerfile-images.ts';

const DIGEST = `sha256:${'a'.repeat(64)}`;
const RESULT = `sha256:${'b'.repeat(64)}`;
const log = pino({ level: 'silent' });

class Project implements Disposable {
  readonly caches: BuildCaches;
  /** What the base image's tag means now. */
  base: string | Error = DIGEST;
  isResultHere = true;
  readonly root: DockerfileRoot = {
    type: 'dockerfile',
    project_id: newUuid(),
    dockerfile: { text: 'FROM base:1\n' },
    docker: false,
    credentials: [],
  };

  constructor(folder: string) {
    const emptyDisks = new EmptyExt4Store(TEST_CACHE);
    const deletedProjects = (): Promise<readonly string[]> => Promise.resolve([]);
    this.caches = new BuildCaches({ folder, emptyDisks, diskMib: 16, maxMib: 64, deletedProjects, log });
  }

  /** As after a build that has succeeded. */
  async finish(root = this.root): Promise<void> {
    await using disk = await this.caches.open(root.project_id, new AbortController().signal);
    disk.keep({ key: dockerfileAlias(root), imageId: 'id', bases: [{ name: 'base:1', digest: DIGEST }] });
  }

  /** @returns the result of the build, or `started` when a micro-VM would be needed */
  async build(root = this.root): Promise<string> {
    const builds = new DockerfileBuilds({
      caches: this.caches,
      images: {
        digestOf: () =>
          typeof this.base === 'string' ? Promise.resolve(this.base) : Promise.reject(this.base),
        acquire: () => Promise.reject(new Error('started')),
      },
      limits: { parallel: 1 },
    } as unknown as DockerfileBuildsOptions);
    const build = {
      workDir: '',
      signal: new AbortController().signal,
      onOutput: () => undefined,
      known: () => Promise.resolve(this.isResultHere ? RESULT : undefined),
    };
    try {
      return (await builds.build(root, build)).digest;
    } catch (error) {
      return (error as Error).message;
    }
  }

  [Symbol.dispose](): void {
    this.caches.close();
  }
}

test('an unchanged build gives its former result while its cache, base images and image are as they were', async () => {
  await using folder = await temporaryFolder();
  using project = new Project(folder.path);
  await project.finish();
  assert.equal(await project.build(), RESULT);
  // A build that starts here discards the cache, as it does not end in order.
  const renewed = async (): Promise<string> => {
    const result = await project.build();
    await project.finish();
    return result;
  };
  project.base = `sha256:${'c'.repeat(64)}`;
  assert.equal(await renewed(), 'started');
  project.base = new Error('the registry does not respond');
  assert.equal(await renewed(), 'started');
  project.base = DIGEST;
  assert.equal(await project.build(), RESULT);
  project.isResultHere = false;
  assert.equal(await renewed(), 'started');
  project.isResultHere = true;
  assert.equal(
    await project.build({ ...project.root, dockerfile: { text: 'FROM base:1\nRUN true\n' } }),
    'started',
  );
  // That has discarded the cache of the project.
  assert.equal(await project.build(), 'started');
  await project.finish();
  assert.equal(await project.build({ ...project.root, project_id: newUuid() }), 'started');
  assert.equal(await project.build(), RESULT);
  await project.caches.tidy(Date.now() + 8 * 24 * 60 * 60_000);
  assert.deepEqual(await readdir(folder.path), []);
});

test('a Dockerfile that fetches what it adds is built each time', () => {
  assert.ok(mayFetch('FROM a\nADD https://example.org/file /\n'));
  assert.ok(mayFetch('FROM a\nARG U\n  add ${U} /\n'));
  assert.ok(mayFetch('FROM a\nONBUILD ADD \\\n git@example.org:a.git /\n'));
  assert.ok(!mayFetch('FROM a\nADD file.tar /\nRUN echo\n'));
  assert.ok(!mayFetch('FROM a\nRUN curl https://example.org/$FILE\n'));
});
