import { readClientHello } from './client-hello.ts';
import { HEAD_MAX_BYTES, readHttpHead } from './http-head.ts';

/** A ClientHello cut into records of one byte each has six times its size; such a client is refused before that. */
export const PEEK_MAX_BYTES = 64 * 1024;

/** What a client speaks, as far as its first bytes tell. */
export type FirstBytes =
  | { type: 'more' }
  /** It looks like TLS or HTTP, and cannot be read. */
  | { type: 'invalid' }
  /** Neither: which name it is for cannot be seen. */
  | { type: 'other' }
  | { type: 'tls' | 'http'; host: string | undefined };

const TLS_HANDSHAKE = 22;
export function readFirstBytes(bytes: Buffer): FirstBytes {
  if (bytes.length === 0) return { type: 'more' };
  if (bytes[0] === TLS_HANDSHAKE) {
    const hello = readClientHello(bytes);
    if (hello === 'more') return bytes.length >= PEEK_MAX_BYTES ? { type: 'invalid' } : { type: 'more' };
    return hello === 'invalid' ? { type: 'invalid' } : { type: 'tls', host: hello.name?.toLowerCase() };
  }
  const head = readHttpHead(bytes);
  if (head === 'more') return bytes.length >= HEAD_MAX_BYTES ? { type: 'invalid' } : { type: 'more' };
  if (head === 'other' || head === 'invalid') return { type: head };
  return { type: 'http', host: head.host };
}
