/** An image with Docker, and the mark of one that a build has prepared for it: made without an emulated guest. */
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rename, rm } from 'node:fs/promises';
import path from 'node:path';
import { lockFile } from '@releap/runner/file-lock';
import { writeOciLayout } from './oci.ts';
import { startRegistry, type TestRegistry } from './registry.ts';
import { TEST_CACHE } from './test-cache.ts';

/** The client has a package of its own in this suite. */
const SUITE = 'trixie';
const PACKAGES = ['busybox-static', 'ca-certificates', 'docker.io', 'docker-cli', 'kmod', 'procps'];
/** Raise it when what is made below changes. */
const RECIPE = 1;
const IMAGE = 'docker:1';

/** A registry that has the image, which is made once, with the machine's network: test files that run at the same time wait for the one that makes it. */
export async function dockerRegistry(): Promise<TestRegistry & { ref: string }> {
  const folder = path.join(TEST_CACHE, `docker-registry-${SUITE}-${RECIPE}`);
  await mkdir(TEST_CACHE, { recursive: true });
  {
    await using _lock = await lockFile(`${folder}.lock`, { wait: true });
    if (!existsSync(folder)) await make(folder);
  }
  const registry = await startRegistry(folder);
  return { ...registry, ref: `${registry.host}/${IMAGE}` };
}

async function make(folder: string): Promise<void> {
  const partial = `${folder}.${process.pid}`;
  await mkdir(partial, { recursive: true });
  try {
    const root = path.join(partial, 'root.tar');
    const excluded = ['doc', 'man', 'locale'].map((name) => `--dpkgopt=path-exclude=/usr/share/${name}/*`);
    const options = ['--mode=root', '--variant=minbase', `--include=${PACKAGES.join(',')}`, ...excluded];
    execFileSync('mmdebstrap', [...options, SUITE, root], { stdio: ['ignore', 'ignore', 'pipe'] });
    const layout = path.join(partial, 'layout');
    const config = { Labels: { 'dev.releap.docker': 'true' } };
    await writeOciLayout(layout, [await readFile(root)], { compression: 'none', config });
    const store = path.join(partial, 'store');
    {
      await using registry = await startRegistry(store);
      registry.push(layout, IMAGE);
    }
    await rename(store, folder);
  } finally {
    await rm(partial, { recursive: true, force: true });
  }
}
