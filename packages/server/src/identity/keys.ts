import { generateKeyPair, randomBytes, randomUUID, type JsonWebKey } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { writePrivateFile } from '@releap/certificates/private-file';

/** The persistent keys of an identity provider. */
export interface IdentityKeys {
  /** Private. */
  signing: JsonWebKey & { kid: string };
  /** Signs cookies. */
  cookies: string;
}

const FILE = 'identity-keys.json';
const RSA_BITS = 2048;

/** The provider's keys from `$RELEAP_HOME/identity-keys.json` (mode 0600), created if absent. */
export async function readOrMakeKeys(home: string): Promise<IdentityKeys> {
  const file = path.join(home, FILE);
  const text = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  if (text !== undefined) return parse(text, file);
  const { privateKey } = await promisify(generateKeyPair)('rsa', { modulusLength: RSA_BITS });
  const keys: IdentityKeys = {
    signing: { ...privateKey.export({ format: 'jwk' }), kid: randomUUID(), use: 'sig', alg: 'RS256' },
    cookies: randomBytes(32).toString('base64url'),
  };
  await writePrivateFile(file, `${JSON.stringify(keys)}\n`);
  return keys;
}

function parse(text: string, file: string): IdentityKeys {
  const damaged = new Error(
    `${file} does not contain the keys of an identity provider: remove it, and users have to sign in again`,
  );
  let keys: Partial<IdentityKeys>;
  try {
    keys = JSON.parse(text) as Partial<IdentityKeys>;
  } catch {
    throw damaged;
  }
  if (typeof keys.cookies !== 'string' || keys.signing?.kty !== 'RSA' || keys.signing['d'] === undefined) {
    throw damaged;
  }
  return keys as IdentityKeys;
}
