/** The files of a home that cannot be made again. Names in a backup do not depend on where the home is. */
import { mkdir, readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { writePrivateFile } from '@releap/certificates/private-file';
import type { Config } from '../config/config.ts';
import { TOKEN_KINDS, tokenFile } from '../tokens.ts';

const KEYS = 'keys';
const SSH_HOST_KEY = 'ssh-host-key';
const HOME = 'home';
/** Certificates of previews with their keys, the account at the authority, and the development root that clients trust. */
const FOLDER = 'certificates';

type Homes = Pick<Config, 'home' | 'keyFile' | 'ssh'>;

export interface HomeFile {
  name: string;
  path: string;
}

/** Those that there are. @throws when the key file cannot be read: a backup without it is of no use */
export async function homeFiles(config: Homes): Promise<(HomeFile & { content: Buffer })[]> {
  const { home } = config;
  const folder = path.join(home, FOLDER);
  const certificates = await readdir(folder, { recursive: true, withFileTypes: true }).catch(noneIfAbsent);
  const inHome = [
    ...TOKEN_KINDS.map((kind) => tokenFile(config, kind)),
    ...['bootstrap.json', 'installation', 'identity-keys.json'].map((name) => path.join(home, name)),
    ...certificates.filter((one) => one.isFile()).map((one) => path.join(one.parentPath, one.name)),
  ];
  const names = [
    KEYS,
    SSH_HOST_KEY,
    ...inHome
      .filter((file) => !file.endsWith('.partial'))
      .map((file) => `${HOME}/${path.relative(home, file)}`),
  ];
  const found = [];
  for (const name of names) {
    const file = pathOf(name, config);
    const content = await readFile(file).catch((error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT' && name !== KEYS) return undefined;
      throw new Error(
        `${file} cannot be read (${error.message})${name === KEYS ? ': without it no secret of the backup could be decrypted' : ''}`,
        { cause: error },
      );
    });
    if (content !== undefined) found.push({ name, path: file, content });
  }
  return found;
}

/** @throws for a name that leads out of the home */
export function pathOf(name: string, { home, keyFile, ssh }: Homes): string {
  if (name === KEYS) return keyFile;
  if (name === SSH_HOST_KEY) return ssh.hostKeyFile;
  const relative = name.slice(HOME.length + 1);
  const file = path.join(home, relative);
  if (
    !name.startsWith(`${HOME}/`) ||
    path.relative(home, file) !== relative ||
    relative.split('/').includes('..')
  )
    throw new Error(`the backup has a file ${JSON.stringify(name)}, which this version does not know`);
  return file;
}

export async function writeHomeFile(file: string, content: Buffer): Promise<void> {
  await mkdir(path.dirname(file), { recursive: true, mode: 0o700 });
  await writePrivateFile(file, content.toString('utf8'));
}

function noneIfAbsent(error: NodeJS.ErrnoException): [] {
  if (error.code !== 'ENOENT') throw error;
  return [];
}
