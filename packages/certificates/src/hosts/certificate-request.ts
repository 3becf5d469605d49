/** PKCS #10 requests (RFC 2986) without a name: the issuer of the certificate chooses it. */
import { type KeyObject, sign } from 'node:crypto';

const TAG = { integer: 0x02, bitString: 0x03, sequence: 0x30, attributes: 0xa0 } as const;
/** AlgorithmIdentifier of ecdsa-with-SHA256 (RFC 5758). */
const ECDSA_SHA256 = Buffer.from('300a06082a8648ce3d040302', 'hex');

/**
 * Made without the X.509 library, which takes 40 MB: runners and gateways need nothing else of it.
 * @returns DER as base64
 */
export function certificateRequest({
  publicKey,
  privateKey,
}: {
  publicKey: KeyObject;
  privateKey: KeyObject;
}): string {
  const info = der(
    TAG.sequence,
    der(TAG.integer, Buffer.of(0)),
    der(TAG.sequence),
    publicKey.export({ type: 'spki', format: 'der' }),
    der(TAG.attributes),
  );
  const signature = sign('sha256', info, privateKey);
  return der(TAG.sequence, info, ECDSA_SHA256, der(TAG.bitString, Buffer.of(0), signature)).toString(
    'base64',
  );
}

function der(tag: number, ...parts: Buffer[]): Buffer {
  const content = Buffer.concat(parts);
  const length =
    content.length < 0x80 ? [content.length] : [0x82, content.length >> 8, content.length & 0xff];
  return Buffer.concat([Buffer.of(tag, ...length), content]);
}
