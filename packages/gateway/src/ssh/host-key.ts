import { createHash } from 'node:crypto';
import ssh2 from 'ssh2';

/** A new Ed25519 host key, as OpenSSH writes private keys. */
export function generateHostKey(): string {
  // ssh2 drops leading zero bytes of the public key: it cannot read one of 256 keys that it makes
  // (https://github.com/mscdex/ssh2/issues/1513).
  for (;;) {
    const { private: key } = ssh2.utils.generateKeyPairSync('ed25519');
    if (!(ssh2.utils.parseKey(key) instanceof Error)) return key;
  }
}

export interface HostKey {
  /** As a line of `known_hosts` has it after the host: `ssh-ed25519 AAAA…`. */
  publicKey: string;
  /** As OpenSSH shows it: `SHA256:…`. */
  fingerprint: string;
}

/**
 * Reads a private key in OpenSSH's or PEM form.
 * @throws when it is malformed or has a passphrase
 */
export function readHostKey(privateKey: string): HostKey {
  const parsed = ssh2.utils.parseKey(privateKey);
  const key = Array.isArray(parsed) ? parsed[0] : parsed;
  if (key === undefined || key instanceof Error || !key.isPrivateKey())
    throw new Error(
      `not a private key that the SSH gateway can use: ${key instanceof Error ? key.message : 'no private key'}; ` +
        'make one with: ssh-keygen -t ed25519 -N "" -f FILE',
    );
  const blob = key.getPublicSSH();
  return {
    publicKey: `${key.type} ${blob.toString('base64')}`,
    fingerprint: `SHA256:${createHash('sha256').update(blob).digest('base64').replace(/=+$/, '')}`,
  };
}
