/**
 * Key-encryption keys in a file: `{"keys": [{"id", "created_at", "key"}]}`, `key` 32 bytes as base64. The last key
 * wraps, all of them unwrap; a key that servers do not have everywhere yet is before it. The file is checked before every
 * use, so that an added key or a removed file takes effect without a restart.
 */
import { randomBytes } from 'node:crypto';
import type { Stats } from 'node:fs';
import { open, type FileHandle } from 'node:fs/promises';
import { makePrivateFile, writePrivateFile } from '@releap/certificates/private-file';
import type { Logger } from 'pino';
import { Type } from 'typebox';
import { Check } from 'typebox/value';
import { KEY_BYTES, seal, unseal } from './aes-gcm.ts';
import { KeysUnavailableError, type KeyEncryptionKeys } from './keys.ts';

const FILE_MAX_BYTES = 64 * 1024;
const KEYS_MAX = 100;

const KeyFile = Type.Object({
  keys: Type.Array(
    Type.Object({
      id: Type.String({ pattern: '^[A-Za-z0-9._-]{1,64}$' }),
      created_at: Type.String(),
      key: Type.String({ pattern: '^[A-Za-z0-9+/]{43}=$' }),
    }),
    { minItems: 1, maxItems: KEYS_MAX },
  ),
});

interface Keys {
  /** Identifies the version of the file that was read. */
  stamp: string;
  byId: Map<string, Buffer>;
  /** The one that wraps. */
  current: { id: string; key: Buffer };
}

/** @param file may be absent */
export function fileKeys(file: string, log: Logger): KeyEncryptionKeys {
  let known: Keys | undefined;
  let complaint: string | undefined;

  const read = async (): Promise<Keys> => {
    try {
      await using handle = await openPrivate(file);
      const stamp = await stampOf(handle);
      if (known?.stamp !== stamp) known = await parse(handle, stamp, file);
      complaint = undefined;
      return known;
    } catch (error) {
      // Keys that may no longer be used are dropped from memory too.
      known = undefined;
      const message = error instanceof Error ? error.message : String(error);
      if (complaint !== message) log.error({ file }, `encryption is unavailable: ${message}`);
      complaint = message;
      throw error instanceof KeysUnavailableError
        ? error
        : new KeysUnavailableError(message, { cause: error });
    }
  };

  return {
    async prepare(fresh) {
      try {
        if (fresh && (await makeKeyFile(file)))
          log.info({ file }, 'created the key that encrypts secrets: back it up apart from the database');
      } catch (error) {
        log.error({ file, err: error }, 'a key file could not be created');
      }
      // Report a broken file now, not at the first secret.
      await read().catch(() => undefined);
    },
    async current() {
      return (await read()).current.id;
    },
    async wrap(dataKey, bound) {
      const { id, key } = (await read()).current;
      return { keyId: id, wrapped: seal(key, dataKey, bind(id, bound)) };
    },
    async unwrap({ keyId, wrapped }, bound) {
      const key = (await read()).byId.get(keyId);
      if (key === undefined)
        throw new KeysUnavailableError(`key file ${file} has no key ${JSON.stringify(keyId)}`);
      return unseal(key, wrapped, bind(keyId, bound));
    },
  };
}

/** Creates a file with one key, unless it exists. @returns whether it did */
export async function makeKeyFile(file: string): Promise<boolean> {
  return await makePrivateFile(file, textOf([newKey()]));
}

/**
 * Adds a key that unwraps, and does not wrap before `promoteKey`: first all servers of the installation need it.
 * @returns its id
 * @throws KeysUnavailableError when the file cannot be read or is invalid, or its newest key is not promoted yet
 */
export async function addKey(file: string): Promise<string> {
  const { keys, current, newest } = await readOrder(file);
  if (newest !== current)
    throw new KeysUnavailableError(
      `key file ${file} has a key that does not encrypt yet, ${newest.id}: distribute the file to all control servers, ` +
        'and then promote that key (releap rotate-key --promote)',
    );
  if (keys.length >= KEYS_MAX)
    throw new KeysUnavailableError(
      `key file ${file} has ${keys.length} keys, which is the most allowed: remove those that no value uses`,
    );
  // Later than the others, also where the clock was set back, or is of the same millisecond: the newest is told by it.
  const key = newKey(Math.max(Date.now(), (Date.parse(newest.created_at) || 0) + 1));
  await writePrivateFile(file, textOf([...keys.slice(0, -1), key, current]));
  return key.id;
}

/**
 * Makes the newest key the current one. Servers notice it and rewrap the data keys of older keys.
 * @returns its id
 * @throws KeysUnavailableError when the file cannot be read or is invalid, or its newest key is the current one
 */
export async function promoteKey(file: string): Promise<string> {
  const { keys, current, newest } = await readOrder(file);
  if (newest === current)
    throw new KeysUnavailableError(
      `the newest key of ${file}, ${current.id}, is the current one: add a key first (releap rotate-key)`,
    );
  await writePrivateFile(file, textOf([...keys.filter((key) => key !== newest), newest]));
  return newest.id;
}

/** `current` is the last key, `newest` the one that was created last. */
async function readOrder(
  file: string,
): Promise<{ keys: StoredKey[]; current: StoredKey; newest: StoredKey }> {
  await using handle = await openPrivate(file);
  const { keys } = await readKeys(handle, file);
  const current = keys.at(-1) as StoredKey;
  const newest = keys.reduce(
    (latest, key) => (Date.parse(key.created_at) > Date.parse(latest.created_at) ? key : latest),
    current,
  );
  return { keys, current, newest };
}

type StoredKey = { id: string; created_at: string; key: string };

function newKey(createdAt = Date.now()): StoredKey {
  const time = new Date(createdAt).toISOString();
  return {
    id: `${time.slice(0, 10)}-${randomBytes(4).toString('hex')}`,
    created_at: time,
    key: randomBytes(KEY_BYTES).toString('base64'),
  };
}

/** Only its owner, this user or root, may read it; `problemOfAccess` has the exception. */
async function openPrivate(file: string): Promise<FileHandle> {
  const handle = await open(file, 'r').catch((error: NodeJS.ErrnoException) => {
    throw new KeysUnavailableError(
      error.code === 'ENOENT'
        ? `key file ${file} does not exist`
        : `key file ${file} cannot be read: ${error.message}`,
    );
  });
  try {
    const problem = problemOfAccess(await handle.stat(), process.getuid?.());
    if (problem !== undefined) throw new KeysUnavailableError(`key file ${file} ${problem}`);
    return handle;
  } catch (error) {
    await handle.close();
    throw error;
  }
}

/**
 * Why a key file may not be used. The group of a file of root may read it where this process is not root, as with keys of PostgreSQL: so
 * Kubernetes mounts a Secret for such a process (`fsGroup`).
 */
export function problemOfAccess(
  { mode, uid }: Pick<Stats, 'mode' | 'uid'>,
  self: number | undefined,
): string | undefined {
  const isOfRoot = uid === 0 && self !== 0;
  if ((mode & (isOfRoot ? 0o037 : 0o077)) !== 0)
    return `may be read by others (mode 0${(mode & 0o777).toString(8)}): chmod 600 it`;
  if (uid !== 0 && uid !== self) return `belongs to user ${uid}, and not to us or root`;
  return undefined;
}

async function stampOf(handle: FileHandle): Promise<string> {
  const { dev, ino, size, mtimeNs, ctimeNs } = await handle.stat({ bigint: true });
  return [dev, ino, size, mtimeNs, ctimeNs].join(':');
}

async function readKeys(handle: FileHandle, file: string): Promise<{ keys: StoredKey[] }> {
  if ((await handle.stat()).size > FILE_MAX_BYTES)
    throw new KeysUnavailableError(`key file ${file} is larger than ${FILE_MAX_BYTES} bytes`);
  let value: unknown;
  try {
    value = JSON.parse(await handle.readFile('utf8'));
  } catch {
    // The parser's own words would quote the file.
    throw new KeysUnavailableError(`key file ${file} is not JSON`);
  }
  if (!Check(KeyFile, value))
    throw new KeysUnavailableError(
      `key file ${file} is not of the form {"keys": [{"id", "created_at", "key": <32 bytes as base64>}]}`,
    );
  return value;
}

async function parse(handle: FileHandle, stamp: string, file: string): Promise<Keys> {
  const { keys } = await readKeys(handle, file);
  const byId = new Map(keys.map(({ id, key }) => [id, Buffer.from(key, 'base64')]));
  if (byId.size !== keys.length) throw new KeysUnavailableError(`key file ${file} has two keys of one id`);
  const id = keys.at(-1)?.id ?? '';
  return { stamp, byId, current: { id, key: byId.get(id) as Buffer } };
}

/** A wrapped data key opens under the id that it says, and under no other. */
function bind(keyId: string, bound: Buffer): Buffer {
  return Buffer.concat([Buffer.from(`${keyId}\n`, 'utf8'), bound]);
}

const textOf = (keys: readonly StoredKey[]): string => `${JSON.stringify({ keys }, null, 2)}\n`;
