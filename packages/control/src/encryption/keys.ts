/**
 * Where key-encryption keys come from. They wrap the data keys of values and never a value itself, so a key management
 * service fits as well as a file: `wrap` and `unwrap` are its encrypt and decrypt calls, `bound` its encryption context.
 */

/** The keys cannot be used now. The message is for the log and for operators; it never tells a key. */
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
   * Called once at start. `fresh`: nothing is encrypted yet, so a key that does not exist may be made. It does not
   * throw for keys that cannot be used now: they may come later, and only what needs them waits for that.
   */
  prepare(fresh: boolean): Promise<void>;
  /** Id of the key that wraps now. @throws KeysUnavailableError */
  current(): Promise<string>;
  /** With the current key. @param bound must be the same for `unwrap`. @throws KeysUnavailableError */
  wrap(dataKey: Buffer, bound: Buffer): Promise<WrappedKey>;
  /** @throws KeysUnavailableError also for a key that is not known here; any other error means forged or moved data */
  unwrap(key: WrappedKey, bound: Buffer): Promise<Buffer>;
}

/** For a server that has been given none. */
export function noKeys(): KeyEncryptionKeys {
  const refuse = (): Promise<never> =>
    Promise.reject(new KeysUnavailableError('this server was started without key-encryption keys'));
  return { prepare: () => Promise.resolve(), current: refuse, wrap: refuse, unwrap: refuse };
}
