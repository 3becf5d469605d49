/**
 * Tokens that open one preview endpoint. They are not stored: a token is an expiry time and an HMAC of it with the id of
 * the endpoint, so a link can be returned again, and the tokens of a removed endpoint are invalid for a later one.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';
import { newToken, tokenBytes, tokenKind } from '@releap/contract';
import type { ServiceKeys } from '../credentials/service-keys.ts';

/** Expiry as a big-endian number of seconds since the epoch; 0 for a token that does not expire. */
const EXPIRY_BYTES = 5;
const MAC_BYTES = 27;

export interface PreviewTokens {
  /** @param expiresAt rounded up to a second; null for never. @throws KeysUnavailableError */
  issue(endpointId: string, expiresAt: Date | null): Promise<string>;
  /** Undefined for a token that does not open the endpoint, or has expired. @throws KeysUnavailableError */
  verify(token: string, endpointId: string): Promise<{ expiresAt: Date | null } | undefined>;
}

export function createPreviewTokens(serviceKeys: ServiceKeys): PreviewTokens {
  async function mac(endpointId: string, expiry: Buffer): Promise<Buffer> {
    const key = await serviceKeys.get('preview-tokens');
    return createHmac('sha256', key).update(endpointId).update(expiry).digest().subarray(0, MAC_BYTES);
  }
  return {
    async issue(endpointId, expiresAt) {
      const expiry = Buffer.alloc(EXPIRY_BYTES);
      if (expiresAt !== null) expiry.writeUIntBE(Math.ceil(expiresAt.getTime() / 1000), 0, EXPIRY_BYTES);
      return newToken('preview', Buffer.concat([expiry, await mac(endpointId, expiry)]));
    },
    async verify(token, endpointId) {
      const bytes = tokenKind(token) === 'preview' ? tokenBytes(token) : null;
      if (bytes === null) return undefined;
      const expiry = bytes.subarray(0, EXPIRY_BYTES);
      if (!timingSafeEqual(bytes.subarray(EXPIRY_BYTES), await mac(endpointId, expiry))) return undefined;
      const seconds = expiry.readUIntBE(0, EXPIRY_BYTES);
      if (seconds === 0) return { expiresAt: null };
      const expiresAt = new Date(seconds * 1000);
      return expiresAt.getTime() > Date.now() ? { expiresAt } : undefined;
    },
  };
}
