/**
 * What a machine needs to join a deployment, in one text: the URL of the control plane, the fingerprint of its authority, and the secret.
 * Form: `rlpjoin_` and base64url of: version (1 byte), fingerprint (32 bytes), length of the URL (1 byte), URL, secret, checksum (4 bytes).
 */
import { createHash } from 'node:crypto';

export interface JoinToken {
  /** Internal listener of the control plane: `https://host:port`. */
  controlUrl: string;
  /** SHA-256 of the root of the deployment's authority, in hexadecimal. */
  fingerprint: string;
  /** What the control plane accepts. */
  secret: string;
}

const PREFIX = 'rlpjoin_';
const VERSION = 1;
const FINGERPRINT_BYTES = 32;
const CHECKSUM_BYTES = 4;
const URL_MAX = 255;
const SECRET = /^[A-Za-z0-9_-]{43,512}$/;
const CONTROL_URL = /^https:\/\/[^\s/?#@]+$/;

/** Whether a text is meant to be one: a secret alone has another form. */
export const isJoinToken = (text: string): boolean => text.startsWith(PREFIX);

export function formatJoinToken({ controlUrl, fingerprint, secret }: JoinToken): string {
  const url = Buffer.from(controlUrl.replace(/\/+$/, ''));
  if (url.length > URL_MAX) throw new Error(`the URL ${controlUrl} is longer than ${URL_MAX} bytes`);
  const content = Buffer.concat([
    Buffer.of(VERSION),
    Buffer.from(fingerprint, 'hex'),
    Buffer.of(url.length),
    url,
    Buffer.from(secret),
  ]);
  return PREFIX + Buffer.concat([content, checksum(content)]).toString('base64url');
}

/** @throws an error for the operator that repeats nothing of the token */
export function parseJoinToken(text: string): JoinToken {
  if (!isJoinToken(text))
    throw new Error(`a join token begins with ${PREFIX}: rlp host join-token prints one`);
  const damaged = new Error('the join token is incomplete or was changed: copy all of it, it is one line');
  const encoded = text.slice(PREFIX.length);
  if (!/^[A-Za-z0-9_-]+$/.test(encoded)) throw damaged;
  const bytes = Buffer.from(encoded, 'base64url');
  const content = bytes.subarray(0, -CHECKSUM_BYTES);
  if (!checksum(content).equals(bytes.subarray(-CHECKSUM_BYTES))) throw damaged;
  if (content[0] !== VERSION)
    throw new Error('the join token is of a later version of Releap: install that version on this machine');
  const urlAt = 1 + FINGERPRINT_BYTES + 1;
  const secretAt = urlAt + (content[urlAt - 1] ?? 0);
  const token = {
    controlUrl: content.toString('utf8', urlAt, secretAt),
    fingerprint: content.toString('hex', 1, 1 + FINGERPRINT_BYTES),
    secret: content.toString('utf8', secretAt),
  };
  if (!CONTROL_URL.test(token.controlUrl) || !SECRET.test(token.secret)) throw damaged;
  return token;
}

const checksum = (content: Buffer): Buffer =>
  createHash('sha256').update(content).digest().subarray(0, CHECKSUM_BYTES);
