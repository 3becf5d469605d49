/**
 * Envelope encryption of values at rest. Each value is encrypted with its own data key, which the key-encryption key
 * wraps: rotation rewrites only the wrapped data keys. The owner is authenticated data, so a value that was moved to
 * another row cannot be decrypted.
 */
import { randomBytes } from 'node:crypto';
import { KEY_BYTES, seal, unseal } from './aes-gcm.ts';
import { KeysUnavailableError, type KeyEncryptionKeys } from './keys.ts';

/** An encrypted value as a row holds it. */
export interface Sealed {
  /** The key-encryption key that unwraps it. */
  keyId: string;
  /** Version (1 byte), length of the wrapped data key (2), that key, and the value sealed with it. */
  envelope: Buffer;
}

/** The owner of a value: authenticated data, which must be the same for decryption. */
export interface Owner {
  kind: 'secret' | 'registry-password' | 'service-key' | 'store-credentials';
  /** Empty for keys of the whole deployment. */
  projectId: string;
  /** Of the secret or key, the registry's host, or the store's id. */
  name: string;
}

/** A value cannot be decrypted although its key is available: the row was forged, damaged or moved. */
export class SealBrokenError extends Error {
  override readonly name = 'SealBrokenError';
}

export interface Encryption {
  /** Id of the current key. @throws KeysUnavailableError */
  currentKey(): Promise<string>;
  /** @throws KeysUnavailableError */
  encrypt(value: string, owner: Owner): Promise<Sealed>;
  /** @throws KeysUnavailableError, SealBrokenError */
  decrypt(sealed: Sealed, owner: Owner): Promise<string>;
  /** The same value under the current key; the value itself is not decrypted. @throws KeysUnavailableError, SealBrokenError */
  rewrap(sealed: Sealed, owner: Owner): Promise<Sealed>;
}

const VERSION = 1;
const HEAD_BYTES = 3;

export function createEncryption(keys: KeyEncryptionKeys): Encryption {
  const unwrap = async (sealed: Sealed, owner: Owner): Promise<{ dataKey: Buffer; body: Buffer }> => {
    const { wrapped, body } = open(sealed.envelope);
    try {
      return { dataKey: await keys.unwrap({ keyId: sealed.keyId, wrapped }, bound(owner, 'key')), body };
    } catch (error) {
      if (error instanceof KeysUnavailableError) throw error;
      throw new SealBrokenError(`the data key of ${describe(owner)} cannot be unwrapped`, { cause: error });
    }
  };
  const pack = async (dataKey: Buffer, owner: Owner, body: Buffer): Promise<Sealed> => {
    const { keyId, wrapped } = await keys.wrap(dataKey, bound(owner, 'key'));
    const head = Buffer.alloc(HEAD_BYTES);
    head.writeUInt8(VERSION, 0);
    head.writeUInt16BE(wrapped.length, 1);
    return { keyId, envelope: Buffer.concat([head, wrapped, body]) };
  };
  return {
    currentKey: () => keys.current(),
    async encrypt(value, owner) {
      const dataKey = randomBytes(KEY_BYTES);
      try {
        return await pack(dataKey, owner, seal(dataKey, Buffer.from(value, 'utf8'), bound(owner, 'value')));
      } finally {
        dataKey.fill(0);
      }
    },
    async decrypt(sealed, owner) {
      const { dataKey, body } = await unwrap(sealed, owner);
      try {
        return unseal(dataKey, body, bound(owner, 'value')).toString('utf8');
      } catch (error) {
        throw new SealBrokenError(`the value of ${describe(owner)} cannot be decrypted`, { cause: error });
      } finally {
        dataKey.fill(0);
      }
    },
    async rewrap(sealed, owner) {
      const { dataKey, body } = await unwrap(sealed, owner);
      try {
        return await pack(dataKey, owner, body);
      } finally {
        dataKey.fill(0);
      }
    },
  };
}

function open(envelope: Buffer): { wrapped: Buffer; body: Buffer } {
  const version = envelope.at(0);
  if (version !== VERSION || envelope.length < HEAD_BYTES)
    throw new SealBrokenError(`an envelope has the version ${version}; this server reads ${VERSION}`);
  const end = HEAD_BYTES + envelope.readUInt16BE(1);
  return { wrapped: envelope.subarray(HEAD_BYTES, end), body: envelope.subarray(end) };
}

/** JSON, so that different owners never give the same bytes. */
function bound({ kind, projectId, name }: Owner, part: 'key' | 'value'): Buffer {
  return Buffer.from(JSON.stringify(['releap', VERSION, part, kind, projectId, name]), 'utf8');
}

function describe({ kind, projectId, name }: Owner): string {
  return `${kind} ${JSON.stringify(name)} of project ${projectId}`;
}
