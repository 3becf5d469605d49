/** The key of a backup, derived from a passphrase. */
import { createHash, randomBytes, scrypt, timingSafeEqual } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import { KEY_BYTES } from '@releap/control/backup';
import { Type, type Static } from 'typebox';
import type { Config } from '../config/config.ts';

const derive = promisify<string, Buffer, number, { N: number; r: number; p: number; maxmem: number }, Buffer>(
  scrypt,
);

/** 128 MiB and about half a second for each guess. */
const COST = { N: 2 ** 17, r: 8, p: 1 };
const CHECK_BYTES = 32;
const LENGTH_MIN = 12;

/** In the header of a backup, which is not encrypted. The bounds keep a damaged header from using all memory. */
export const Encryption = Type.Object({
  kdf: Type.Literal('scrypt'),
  n: Type.Integer({ minimum: 2 ** 14, maximum: 2 ** 20 }),
  r: Type.Integer({ minimum: 1, maximum: 16 }),
  p: Type.Integer({ minimum: 1, maximum: 4 }),
  salt: Type.String({ pattern: '^[A-Za-z0-9+/=]{24,88}$' }),
  /** Digest of a second derived key: tells a wrong passphrase from a damaged file. */
  check: Type.String({ pattern: '^[0-9a-f]{64}$' }),
});
export type Encryption = Static<typeof Encryption>;

export async function newKey(passphrase: string): Promise<{ key: Buffer; encryption: Encryption }> {
  const salt = randomBytes(32);
  const { key, check } = await deriveKey(passphrase, salt, COST);
  const { N: n, r, p } = COST;
  return { key, encryption: { kdf: 'scrypt', n, r, p, salt: salt.toString('base64'), check } };
}

/** @throws for another passphrase than that of `newKey` */
export async function keyOf(passphrase: string, { n, r, p, salt, check }: Encryption): Promise<Buffer> {
  const found = await deriveKey(passphrase, Buffer.from(salt, 'base64'), { N: n, r, p });
  if (!timingSafeEqual(Buffer.from(found.check), Buffer.from(check)))
    throw new Error('the passphrase is not the one of this backup');
  return found.key;
}

async function deriveKey(
  passphrase: string,
  salt: Buffer,
  cost: { N: number; r: number; p: number },
): Promise<{ key: Buffer; check: string }> {
  const maxmem = 128 * cost.N * cost.r * 2;
  const derived = await derive(passphrase.normalize('NFKC'), salt, KEY_BYTES + CHECK_BYTES, {
    ...cost,
    maxmem,
  });
  return {
    key: derived.subarray(0, KEY_BYTES),
    check: createHash('sha256').update(derived.subarray(KEY_BYTES)).digest('hex'),
  };
}

/** The first line of a file, or the variable. @throws when the line is short */
export async function passphraseOf(
  { backupPassphrase }: Pick<Config, 'backupPassphrase'>,
  file: string | undefined,
): Promise<string | undefined> {
  if (file === undefined) return backupPassphrase;
  const [text = ''] = (await readFile(file, 'utf8')).split(/\r?\n/, 1);
  if (text.length < LENGTH_MIN)
    throw new Error(
      `the first line of ${file} has ${text.length} characters: a passphrase needs at least ${LENGTH_MIN}, for example those of openssl rand -base64 24`,
    );
  return text;
}
