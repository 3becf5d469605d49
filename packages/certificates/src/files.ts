import { readFile } from 'node:fs/promises';
import type { CertificatePair } from './certificate.ts';
import type { CertificateProvider } from './maintained-certificate.ts';

/** A certificate that the operator renews: both files are read again every minute. */
export function certificateFiles(certificate: string, key: string): CertificateProvider {
  return {
    source: 'files',
    async load(): Promise<CertificatePair> {
      return { certificate: await readFile(certificate, 'utf8'), key: await readFile(key, 'utf8') };
    },
  };
}
