/**
 * Certificates for the interception of TLS: one root a deployment, and intermediates for runners. Loaded on first use,
 * because the library takes 40 MB and most control servers need it once a week.
 */
import {
  createRoot as createRootCertificate,
  DAY_MS,
  exportKey,
  generateKeys,
  importSigningKey,
  issueIntermediate,
  keyOfRequest,
  parseCertificate,
  toPem,
} from '@releap/certificates/x509';
import { badRequest } from '@releap/contract';

const ROOT_MS = 10 * 365 * DAY_MS;
const INTERMEDIATE_MS = 7 * DAY_MS;

export interface Root {
  /** PEM. */
  certificate: string;
  /** PKCS #8, base64. */
  key: string;
}

/** @param label distinguishes the roots of deployments for people */
export async function createRoot(label: string): Promise<Root> {
  const keys = await generateKeys(true);
  const commonName = `Releap egress root ${label}`;
  const certificate = await createRootCertificate({ commonName, keys, validMs: ROOT_MS, pathLength: 1 });
  return { certificate: toPem(certificate), key: (await exportKey(keys.privateKey)).toString('base64') };
}

/**
 * An intermediate for the key of a request, valid for a week. Names and extensions of the request are ignored.
 * @throws 400
 */
export async function signIntermediate(
  root: Root,
  request: string,
  runnerId: string,
): Promise<{ certificate: string; notAfter: Date }> {
  const publicKey = await keyOfRequest(request).catch((error: unknown) => {
    throw badRequest(`request: ${error instanceof Error ? error.message : String(error)}`);
  });
  const certificate = await issueIntermediate(
    {
      certificate: parseCertificate(root.certificate),
      key: await importSigningKey(Buffer.from(root.key, 'base64')),
    },
    { commonName: `Releap egress ${runnerId}`, publicKey, validMs: INTERMEDIATE_MS },
  );
  return { certificate: toPem(certificate), notAfter: certificate.notAfter };
}
