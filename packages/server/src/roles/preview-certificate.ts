import {
  acmeCertificate,
  certificateFiles,
  type CertificateProvider,
  devAuthority,
  dnsHook,
  dynamicUpdates,
  MaintainedCertificate,
} from '@releap/certificates';
import type { Logger } from 'pino';
import type { AcmeConfig, PreviewTls } from '../config/preview-tls.ts';

interface Where {
  home: string;
  domain: string;
  log: Logger;
}

/** The certificate of previews as it is configured. One that must be obtained first comes later. */
export async function startPreviewCertificate(tls: PreviewTls, where: Where): Promise<MaintainedCertificate> {
  return await MaintainedCertificate.start({ provider: providerOf(tls, where), ...where });
}

function providerOf(tls: PreviewTls, where: Where): CertificateProvider {
  if (tls.source === 'files') return certificateFiles(tls.certificate, tls.key);
  if (tls.source === 'dev') return devAuthority(where);
  const { dns, ...options } = tls.acme;
  return acmeCertificate({ ...where, ...options, dns: challengeDns(dns) });
}

function challengeDns(dns: AcmeConfig['dns']) {
  return dns.type === 'hook' ? dnsHook(dns.program, dns.deadlineMs) : dynamicUpdates(dns);
}
