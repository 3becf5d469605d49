export { acmeCertificate, type AcmeOptions } from './acme/acme.ts';
export { type ChallengeDns, dnsHook, dynamicUpdates } from './acme/challenge-dns.ts';
export type { CertificatePair } from './certificate.ts';
export { devAuthority } from './dev.ts';
export { certificateFiles } from './files.ts';
export {
  type CertificateProvider,
  MaintainedCertificate,
  type MaintainedCertificateOptions,
} from './maintained-certificate.ts';
