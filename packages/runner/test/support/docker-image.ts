/** An image with Docker, and the mark of one that a build has prepared for it: made without an emulated guest. */
import { execFileSync } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { writeOciLayout } from '@releap/testing/oci';
import { startRegistry } from '@releap/testing/registry';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { DOCKER_LABEL } from '../../src/image/image-config.ts';
import { ImageStore } from '../../src/image/image-store.ts';
import { log } from './machines.ts';

/** The client has a package of its own in this suite. */
const SUITE = 'trixie';
const PACKAGES = ['busybox-static', 'ca-certificates', 'docker.io', 'docker-cli', 'kmod', 'procps'];
/** Names the digest of what is made below. */
const MADE = path.join(TEST_CACHE, `docker-${SUITE}-2.digest`);

/** Made once, with the machine's network. @returns the digest of its root image in the cache of the tests */
export async function dockerImage(): Promise<string> {
  const images = new ImageStore({ cacheDir: TEST_CACHE, privateHosts: ['loopback'], log });
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-docker-image-'));
  try {
    await images.start();
    const known = await readFile(MADE, 'utf8').catch(() => undefined);
    if (known !== undefined && (await images.find(known)) !== undefined) return known;
    const root = path.join(folder, 'root.tar');
    const excluded = ['doc', 'man', 'locale'].map((name) => `--dpkgopt=path-exclude=/usr/share/${name}/*`);
    const options = ['--mode=root', '--variant=minbase', `--include=${PACKAGES.join(',')}`, ...excluded];
    execFileSync('mmdebstrap', [...options, SUITE, root], { stdio: ['ignore', 'ignore', 'pipe'] });
    const layout = path.join(folder, 'layout');
    const config = { Labels: { [DOCKER_LABEL]: 'true' } };
    await writeOciLayout(layout, [await readFile(root)], { compression: 'none', config });
    await using registry = await startRegistry(path.join(folder, 'registry'));
    registry.push(layout, 'docker:1');
    const { digest } = await images.ensure({ type: 'registry', ref: `${registry.host}/docker:1` });
    await writeFile(MADE, digest);
    return digest;
  } finally {
    await images.close();
    await rm(folder, { recursive: true, force: true });
  }
}
