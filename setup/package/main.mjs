/** Makes the packages of the version that set-up has built. Runs with the Node that they contain. */
import { mkdir, readFile, rm } from 'node:fs/promises';
import path from 'node:path';
import { ARCHITECTURE } from '../architecture.mjs';
import { say } from '../command.mjs';
import { main, REPO } from '../setup.mjs';
import { copyReproducibly, setTimes, writeArchive, writeChecksums } from './archive.mjs';
import { writeDebianPackage } from './debian.mjs';
import { writeImage } from './image.mjs';
import { sourceOf } from './manifest.mjs';
import { assembleTree } from './tree.mjs';

const DIST = path.join(REPO, 'dist');

await main(async () => {
  const { version } = JSON.parse(await readFile(path.join(REPO, 'package.json'), 'utf8'));
  const { commit, epoch } = await sourceOf(REPO);
  const { name: architecture } = ARCHITECTURE;
  const scratch = path.join(DIST, '.scratch');
  await rm(DIST, { recursive: true, force: true });
  await mkdir(scratch, { recursive: true });
  try {
    const name = `releap-${version}`;
    const tree = path.join(scratch, name);
    say('collecting the files of the package');
    const manifest = await assembleTree(REPO, tree, { version, commit, epoch, architecture });
    await setTimes(tree, epoch);
    const archive = path.join(DIST, `${name}-linux-${architecture}.tar.gz`);
    const deb = path.join(DIST, `releap_${version}_${architecture}.deb`);
    const image = path.join(DIST, `${name}-oci-${architecture}.tar`);
    say('writing the archive');
    await writeArchive(archive, scratch, [name], epoch);
    say('writing the image of control plane and gateway');
    await writeImage(image, { tree, scratch, manifest, epoch });
    say('writing the Debian package');
    await writeDebianPackage(deb, { tree, deploy: path.join(REPO, 'deploy'), scratch, version, epoch });
    const installer = path.join(DIST, 'install.sh');
    await copyReproducibly(path.join(REPO, 'deploy/install.sh'), installer);
    await writeChecksums(path.join(DIST, 'SHA256SUMS'), [archive, deb, image, installer]);
    process.stdout.write(await readFile(path.join(DIST, 'SHA256SUMS'), 'utf8'));
  } finally {
    await rm(scratch, { recursive: true, force: true });
  }
});
