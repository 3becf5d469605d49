/**
 * The development CA of a home: a root that is valid for the preview domain alone, and a leaf that is replaced ahead of its
 * end. Keys are readable by their owner alone, and the root's signs nothing but that leaf.
 */
import { createPrivateKey, X509Certificate } from 'node:crypto';
import { mkdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { devRootFile } from '@releap/contract/preview-certificate';
import type { Logger } from 'pino';
import {
  type CertificatePair,
  factsOf,
  inspectPair,
  joinPair,
  renewalTime,
  splitPair,
} from './certificate.ts';
import type { CertificateProvider } from './maintained-certificate.ts';
import { readIfThere, writePrivateFile } from './private-file.ts';

const DAY_MS = 24 * 3_600_000;
const ROOT_VALID_MS = 10 * 365 * DAY_MS;
/** Less than what browsers accept of any authority. */
const LEAF_VALID_MS = 90 * DAY_MS;

export interface DevAuthorityOptions {
  home: string;
  domain: string;
  log: Logger;
}

export function devAuthority({ home, domain, log }: DevAuthorityOptions): CertificateProvider {
  const rootFile = path.join(home, devRootFile(domain));
  const folder = path.dirname(rootFile);
  const rootKeyFile = path.join(folder, 'root.key');
  const leafFile = path.join(folder, 'leaf.pem');

  /** Made on first use, and again when it ends before a leaf would. */
  const root = async (now: Date): Promise<CertificatePair> => {
    const [certificate, key] = [await readIfThere(rootFile), await readIfThere(rootKeyFile)];
    if (certificate !== undefined && key !== undefined && isUsableRoot({ certificate, key }, now))
      return { certificate, key };
    const { createRoot, exportKeyPem, generateKeys, toPem } = await import('./x509.ts');
    const keys = await generateKeys(true);
    const commonName = `Releap previews of ${domain}`;
    const made = toPem(await createRoot({ commonName, keys, validMs: ROOT_VALID_MS, pathLength: 0, domain }));
    const madeKey = await exportKeyPem(keys.privateKey);
    await mkdir(folder, { recursive: true, mode: 0o700 });
    await writePrivateFile(rootKeyFile, madeKey);
    await writePrivateFile(rootFile, made);
    log.warn(
      { file: rootFile },
      `created a root certificate for previews below ${domain}, which clients have to trust (rlp preview-ca)`,
    );
    return { certificate: made, key: madeKey };
  };

  const issue = async (authority: CertificatePair, now: Date): Promise<CertificatePair> => {
    const { exportKeyPem, generateKeys, importSigningKey, issueLeaf, parseCertificate, toPem } = await import(
      './x509.ts'
    );
    const keys = await generateKeys(true);
    const issuer = {
      certificate: parseCertificate(authority.certificate),
      key: await importSigningKey(createPrivateKey(authority.key).export({ type: 'pkcs8', format: 'der' })),
    };
    const { publicKey } = keys;
    const leaf = await issueLeaf(issuer, { hosts: [`*.${domain}`], publicKey, validMs: LEAF_VALID_MS, now });
    return { certificate: toPem(leaf), key: await exportKeyPem(keys.privateKey) };
  };

  return {
    source: 'dev',
    async load(now) {
      const authority = await root(now);
      const there = await readLeaf(leafFile);
      if (there !== undefined && isUsableLeaf(there, authority, domain, now)) return there;
      const made = await issue(authority, now);
      await writePrivateFile(leafFile, joinPair(made));
      return made;
    },
  };
}

function isUsableRoot({ certificate, key }: CertificatePair, now: Date): boolean {
  try {
    const root = new X509Certificate(certificate);
    if (!root.checkPrivateKey(createPrivateKey(key))) return false;
    return factsOf(root).notAfter.getTime() > now.getTime() + LEAF_VALID_MS;
  } catch {
    // Damaged: nothing can be signed with it any more.
    return false;
  }
}

function isUsableLeaf(leaf: CertificatePair, authority: CertificatePair, domain: string, now: Date): boolean {
  try {
    const facts = inspectPair(leaf, domain);
    const isIssued = new X509Certificate(leaf.certificate).verify(
      new X509Certificate(authority.certificate).publicKey,
    );
    return isIssued && now < renewalTime(facts);
  } catch {
    return false;
  }
}

async function readLeaf(file: string): Promise<CertificatePair | undefined> {
  try {
    return splitPair(await readFile(file, 'utf8'));
  } catch {
    // Absent, or damaged: it is made again.
    return undefined;
  }
}
