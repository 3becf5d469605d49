/**
 * A real installation of Docker by a build. Its base is a minimal Debian with a repository of the packages in itself: the
 * network of the tests leads nowhere.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream, existsSync } from 'node:fs';
import { mkdir, rename, rm, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { newUuid } from '@releap/contract';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { ImageStore, type RootImage } from '../../src/image/image-store.ts';
import { openDockerfileBuilds, packagesDir } from './dockerfile-builds.ts';
import { log } from './machines.ts';
import type { TestRunner } from './sandboxes.ts';

const SUITE = 'trixie';
/** Raise it when what is made below changes. */
const RECIPE = 2;

/** The packages are stored without compression, and without documentation: an emulated guest unpacks them. */
const REPOSITORY = `set -e
chroot "$1" apt-get install -y --download-only --no-install-recommends docker.io docker-cli kmod
mkdir -p "$1/srv/repository"
cd "$1/srv/repository"
for deb in "$1"/var/cache/apt/archives/*.deb; do
  name=$(basename "$deb")
  dpkg-deb -R "$deb" unpacked
  rm -rf unpacked/usr/share/doc unpacked/usr/share/man unpacked/usr/share/locale unpacked/usr/bin/ctr
  dpkg-deb -Znone -b unpacked "$name"
  rm -rf unpacked
  { dpkg-deb -f "$name"; echo "Filename: ./$name"; echo "Size: $(stat -c %s "$name")";
    echo "SHA256: $(sha256sum "$name" | cut -d ' ' -f 1)"; echo; } >> Packages
done
rm -f "$1"/etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/srv/repository ./' > "$1/etc/apt/sources.list"
`;

const DOCKERFILE = 'FROM scratch\nADD root.tar /\n';

/** Made once, with the machine's network. @returns path of the context of the build: a tar archive with the base in it */
export async function packagesOfDocker(): Promise<string> {
  const archive = path.join(TEST_CACHE, `docker-base-${SUITE}-${RECIPE}.tar`);
  if (existsSync(archive)) return archive;
  const partial = `${archive}.${process.pid}`;
  await mkdir(partial, { recursive: true });
  try {
    const inPartial = (name: string): string => path.join(partial, name);
    const [hook, root, made] = [inPartial('repository.sh'), inPartial('root.tar'), inPartial('made.tar')];
    await writeFile(hook, REPOSITORY, { mode: 0o755 });
    const excluded = ['doc', 'man', 'locale'].map((name) => `--dpkgopt=path-exclude=/usr/share/${name}/*`);
    const options = [
      '--mode=root',
      '--variant=minbase',
      '--include=busybox-static,ca-certificates,procps',
      ...excluded,
    ];
    const script = ['--customize-hook', `sh ${hook} "$1"`];
    execFileSync('mmdebstrap', [...options, ...script, SUITE, root], { stdio: ['ignore', 'ignore', 'pipe'] });
    execFileSync('tar', ['-C', partial, '-cf', made, 'root.tar']);
    await rename(made, archive);
  } finally {
    await rm(partial, { recursive: true, force: true });
  }
  return archive;
}

/** @param context what `packagesOfDocker` returned */
export async function installDocker(
  { machines, network, home }: TestRunner,
  context: string,
): Promise<RootImage> {
  const images: ImageStore = new ImageStore({
    cacheDir: TEST_CACHE,
    packagesDir,
    log,
    buildDockerfile: (root, build) => {
      const openBlob = async () => createReadStream(context) as AsyncIterable<Uint8Array>;
      const limits = { diskMib: 4096, timeMs: 30 * 60_000 };
      return openDockerfileBuilds(home, { machines, network, images, openBlob }, limits).build(root, build);
    },
  });
  const hash = createHash('sha256');
  await pipeline(createReadStream(context), hash);
  try {
    return await images.ensure({
      type: 'dockerfile',
      project_id: newUuid(),
      dockerfile: { text: DOCKERFILE },
      context: { digest: `sha256:${hash.digest('hex')}`, bytes: (await stat(context)).size },
      docker: true,
      credentials: [],
    });
  } finally {
    await images.close();
  }
}
