/**
 * Tokens that open one preview endpoint. They are not stored: a token is an expiry time and an HMAC of it with the id of
 * the endpoint, so a link can be returned again, and the tokens of a removed endpoint are invalid for a later one.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';
import { newToken, tokenBytes, tokenKind } from '@releap/contract';
import type { ServiceKeys } from '../../platform/credentials/service-keys.ts';

/** Expiry as a big-endian number of seconds since the epoch; 0 for a token that does not expire. */
const EXPIRY_BYTES = 5;
const MAC_BYTES = 27;

/** What a token opens: the endpoint, or also the WebSockets of the toolbox. */
export type PreviewScope = 'preview' | 'toolbox';

export interface PreviewTokens {
  /** @param expiresAt rounded up to a second; null for never. @throws KeysUnavailableError */
  issue(endpointId: string, expiresAt: Date | null, scope?: PreviewScope): Promise<string>;
  /** Undefined for a token that does not open that, or has expired. @throws KeysUnavailableError */
  verify(
    token: string,
    endpointId: string,
    scope?: PreviewScope,
  ): Promise<{ expiresAt: Date | null } | undefined>;
}

export function createPreviewTokens(serviceKeys: ServiceKeys): PreviewTokens {
  /** Ids and expiry have one length each, so that no two inputs are the same text. */
  async function mac(endpointId: string, expiry: Buffer, scope: PreviewScope): Promise<Buffer> {
    const key = await serviceKeys.get('preview-tokens');
    const hmac = createHmac('sha256', key).update(endpointId).update(expiry);
    if (scope === 'toolbox') hmac.update(scope);
    return hmac.digest().subarray(0, MAC_BYTES);
  }
  return {
    async issue(endpointId, expiresAt, scope = 'preview') {
      const expiry = Buffer.alloc(EXPIRY_BYTES);
      if (expiresAt !== null) expiry.writeUIntBE(Math.ceil(expiresAt.getTime() / 1000), 0, EXPIRY_BYTES);
      return newToken('preview', Buffer.concat([expiry, await mac(endpointId, expiry, scope)]));
    },
    async verify(token, endpointId, scope = 'preview') {
      const bytes = tokenKind(token) === 'preview' ? tokenBytes(token) : null;
      if (bytes === null) return undefined;
      const expiry = bytes.subarray(0, EXPIRY_BYTES);
      const sent = bytes.subarray(EXPIRY_BYTES);
      const opens = async (one: PreviewScope): Promise<boolean> =>
        timingSafeEqual(sent, await mac(endpointId, expiry, one));
      if (!(await opens('toolbox')) && (scope === 'toolbox' || !(await opens('preview')))) return undefined;
      const seconds = expiry.readUIntBE(0, EXPIRY_BYTES);
      if (seconds === 0) return { expiresAt: null };
      const expiresAt = new Date(seconds * 1000);
      return expiresAt.getTime() > Date.now() ? { expiresAt } : undefined;
    },
  };
}
