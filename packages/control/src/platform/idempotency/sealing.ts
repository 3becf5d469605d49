/** Encrypts recorded responses, which may contain tokens: the database alone cannot decrypt them. */
import { createHmac, hkdfSync } from 'node:crypto';
import { seal, unseal } from '../encryption/aes-gcm.ts';

/** Context of the key derivation. */
const NOTHING_BOUND = Buffer.alloc(0);

export interface Sealing {
  /** 32 bytes derived from the installation's secret, this key and this salt. */
  seed(idempotencyKey: string, salt: Buffer): Buffer;
  seal(idempotencyKey: string, salt: Buffer, text: string): Buffer;
  /** Null when it was sealed under another secret, or is damaged. */
  open(idempotencyKey: string, salt: Buffer, sealed: Buffer): string | null;
}

/** @param secret shared by all servers of the installation, and not in its database */
export function createSealing(secret: string): Sealing {
  // The client's key is an input too: the secret alone cannot decrypt a response.
  const derive = (purpose: string, key: string, salt: Buffer): Buffer =>
    Buffer.from(
      hkdfSync('sha256', createHmac('sha256', secret).update(key).digest(), salt, `releap ${purpose}`, 32),
    );
  return {
    seed: (key, salt) => derive('idempotency seed', key, salt),
    seal: (key, salt, text) =>
      seal(derive('idempotency answer', key, salt), Buffer.from(text, 'utf8'), NOTHING_BOUND),
    open(key, salt, sealed) {
      try {
        return unseal(derive('idempotency answer', key, salt), sealed, NOTHING_BOUND).toString('utf8');
      } catch {
        return null;
      }
    },
  };
}
