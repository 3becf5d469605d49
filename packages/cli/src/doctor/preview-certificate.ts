/** The certificate that the gateway of this machine serves previews with. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  PREVIEW_CERTIFICATE_FILES,
  type PreviewCertificateStatus,
} from '@releap/contract/preview-certificate';
import type { Check } from './check.ts';

/** After the service's last attempt to renew it a third of its life was left: this is much less, for any authority. */
const SOON_MS = 3 * 24 * 3_600_000;

/** No check without TLS. */
export async function checkPreviewCertificate(home: string, now = new Date()): Promise<Check[]> {
  const status = await readCertificateStatus(home);
  if (status === undefined) return [];
  const { certificate, problem, domain, source, renew_at: renewAt } = status;
  const check = (isOk: boolean, detail: string): Check[] => [
    {
      id: 'preview-certificate',
      title: 'Certificate',
      status: isOk ? 'ok' : 'warn',
      detail: `previews below ${domain} (${source}): ${detail}`,
    },
  ];
  const because = problem === undefined ? '' : `; ${problem}`;
  if (certificate === undefined) return check(false, `there is no certificate yet${because}`);
  const left = new Date(certificate.not_after).getTime() - now.getTime();
  const ends = `${left < 0 ? 'expired' : 'expires'} ${day(certificate.not_after)}`;
  const renewed = renewAt === undefined || problem !== undefined ? '' : `, renewed from ${day(renewAt)}`;
  return check(problem === undefined && left > SOON_MS, `${ends}${renewed}${because}`);
}

/** What the gateway wrote last; undefined if it serves no TLS. */
export async function readCertificateStatus(home: string): Promise<PreviewCertificateStatus | undefined> {
  try {
    const text = await readFile(join(home, PREVIEW_CERTIFICATE_FILES.status), 'utf8');
    return JSON.parse(text) as PreviewCertificateStatus;
  } catch {
    return undefined;
  }
}

const day = (time: string): string => time.slice(0, 10);
