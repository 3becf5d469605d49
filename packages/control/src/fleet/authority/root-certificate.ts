/** What roots are made and used with. Loaded on first use, because the library takes 40 MB. */
import {
  createRoot as createRootCertificate,
  DAY_MS,
  exportKey,
  generateKeys,
  importSigningKey,
  type Issuer,
  keyOfRequest,
  parseCertificate,
  toPem,
} from '@releap/certificates/x509';
import { badRequest } from '@releap/contract';
import type { Root } from './planned-root.ts';

const ROOT_MS = 10 * 365 * DAY_MS;

/** @param options `domain`: if given, what it signs is valid for names of this domain alone */
export async function createRoot(options: {
  commonName: string;
  pathLength: number;
  domain?: string;
}): Promise<Root> {
  const keys = await generateKeys(true);
  const certificate = await createRootCertificate({ ...options, keys, validMs: ROOT_MS });
  return { certificate: toPem(certificate), key: (await exportKey(keys.privateKey)).toString('base64') };
}

export async function issuerOf({ certificate, key }: Root): Promise<Issuer> {
  return {
    certificate: parseCertificate(certificate),
    key: await importSigningKey(Buffer.from(key, 'base64')),
  };
}

/** The key of a PKCS #10 request, whose names and extensions are ignored. @throws 400 */
export async function requestedKey(request: string): ReturnType<typeof keyOfRequest> {
  return await keyOfRequest(request).catch((error: unknown) => {
    throw badRequest(`request: ${error instanceof Error ? error.message : String(error)}`);
  });
}
