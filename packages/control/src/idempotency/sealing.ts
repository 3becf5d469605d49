/** Keeps answers that may hold tokens: what lies in the database cannot be read with the database alone. */
import { createCipheriv, createDecipheriv, createHmac, hkdfSync, randomBytes } from 'node:crypto';

const NONCE = 12;
const TAG = 16;

export interface Sealing {
  /** 32 bytes that follow from the installation's secret, this key and this salt. */
  seed(idempotencyKey: string, salt: Buffer): Buffer;
  seal(idempotencyKey: string, salt: Buffer, text: string): Buffer;
  /** Null when it was sealed under another secret, or is damaged. */
  open(idempotencyKey: string, salt: Buffer, sealed: Buffer): string | null;
}

/** @param secret shared by all servers of the installation, and not in its database */
export function createSealing(secret: string): Sealing {
  // The caller's own key takes part: with the secret, but without that key, an answer stays closed too.
  const derive = (purpose: string, key: string, salt: Buffer): Buffer =>
    Buffer.from(
      hkdfSync('sha256', createHmac('sha256', secret).update(key).digest(), salt, `releap ${purpose}`, 32),
    );
  return {
    seed: (key, salt) => derive('idempotency seed', key, salt),
    seal(key, salt, text) {
      const nonce = randomBytes(NONCE);
      const cipher = createCipheriv('aes-256-gcm', derive('idempotency answer', key, salt), nonce);
      const body = Buffer.concat([cipher.update(text, 'utf8'), cipher.final()]);
      return Buffer.concat([nonce, cipher.getAuthTag(), body]);
    },
    open(key, salt, sealed) {
      if (sealed.length < NONCE + TAG) return null;
      const decipher = createDecipheriv(
        'aes-256-gcm',
        derive('idempotency answer', key, salt),
        sealed.subarray(0, NONCE),
      );
      decipher.setAuthTag(sealed.subarray(NONCE, NONCE + TAG));
      try {
        return decipher.update(sealed.subarray(NONCE + TAG), undefined, 'utf8') + decipher.final('utf8');
      } catch {
        return null;
      }
    },
  };
}
