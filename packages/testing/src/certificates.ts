/** Authorities of tests: the root that guests trust, and one of the servers outside. */
import {
  createRoot,
  exportKeyPem,
  generateKeys,
  issueIntermediate,
  issueLeaf,
  keyOfRequest,
  toPem,
} from '@releap/certificates/x509';

const HOUR_MS = 3_600_000;

export interface TestAuthority {
  /** PEM. */
  certificate: string;
  /** Signs the key of a PKCS #10 request (DER as base64) as an intermediate. */
  signIntermediate(request: string): Promise<string>;
  /** Key and certificate of a server. */
  issue(...hosts: string[]): Promise<{ key: string; cert: string }>;
}

export async function testAuthority(name: string): Promise<TestAuthority> {
  const keys = await generateKeys(true);
  const root = await createRoot({ commonName: name, keys, validMs: HOUR_MS, pathLength: 1 });
  const issuer = { certificate: root, key: keys.privateKey };
  return {
    certificate: toPem(root),
    async signIntermediate(request) {
      const publicKey = await keyOfRequest(request);
      return toPem(
        await issueIntermediate(issuer, { commonName: 'intermediate', publicKey, validMs: HOUR_MS }),
      );
    },
    async issue(...hosts) {
      const own = await generateKeys(true);
      const leaf = await issueLeaf(issuer, { hosts, publicKey: own.publicKey, validMs: HOUR_MS });
      return { key: await exportKeyPem(own.privateKey), cert: toPem(leaf) };
    },
  };
}
