/**
 * A provider of key-encryption keys. They wrap data keys and never a value itself, so that a key management service
 * can replace the file: `wrap` and `unwrap` are its encrypt and decrypt calls, `bound` is its encryption context.
 */

/** The keys cannot be used now. The message is for the log and for operators; it never contains a key. */
export class KeysUnavailableError extends Error {
  override readonly name = 'KeysUnavailableError';
}

export interface WrappedKey {
  /** Names the key-encryption key; 1 to 200 characters. */
  keyId: string;
  /** As `unwrap` takes it; at most 4096 bytes. */
  wrapped: Buffer;
}

export interface KeyEncryptionKeys {
  /**
   * Called once at start. `fresh`: nothing is encrypted yet, so an absent key may be created. Does not throw for
   * unavailable keys: they may become available later, and only operations that need them fail until then.
   */
  prepare(fresh: boolean): Promise<void>;
  /** Id of the current key. @throws KeysUnavailableError */
  current(): Promise<string>;
  /** With the current key. @param bound must be the same for `unwrap`. @throws KeysUnavailableError */
  wrap(dataKey: Buffer, bound: Buffer): Promise<WrappedKey>;
  /** @throws KeysUnavailableError also for a key that is not known here; any other error means forged or moved data */
  unwrap(key: WrappedKey, bound: Buffer): Promise<Buffer>;
}

/** For a server without keys. */
export function noKeys(): KeyEncryptionKeys {
  const refuse = (): Promise<never> =>
    Promise.reject(new KeysUnavailableError('this server was started without key-encryption keys'));
  return { prepare: () => Promise.resolve(), current: refuse, wrap: refuse, unwrap: refuse };
}
