/**
 * Issues the certificates with which the processes of a deployment know each other: runners to gateways and control servers, and these
 * to runners. The caller has authenticated whom a certificate names.
 */
import { X509Certificate } from 'node:crypto';
import { CONTROL_NAME, HOST_DOMAIN, type HostName, hostName } from '@releap/certificates/hosts';
import type { HostCertificateResponse } from '@releap/contract';
import type { ServiceKeys } from '../../platform/credentials/service-keys.ts';
import { createPlannedRoot, type PlannedRoot } from './planned-root.ts';

const DAY_MS = 24 * 3_600_000;
const CERTIFICATE_MS = DAY_MS;
/** A host whose clock is further behind cannot use its certificate. */
const BACKDATED_MS = 5 * 60_000;

export interface HostAuthority extends Pick<PlannedRoot, 'renew' | 'trusted'> {
  /**
   * A certificate of the key of a request, for one side of TLS: runners are servers, and gateways and control servers clients.
   * @throws 400, KeysUnavailableError
   */
  issue(request: string, name: HostName): Promise<HostCertificateResponse>;
  /** The same for the internal listener of a control server, with the root after it: machines that join compare its fingerprint. */
  issueListener(request: string): Promise<HostCertificateResponse>;
  /** SHA-256 of the root that signs, in hexadecimal. @throws KeysUnavailableError */
  fingerprint(): Promise<string>;
}

export interface HostAuthorityOptions {
  serviceKeys: ServiceKeys;
  /** Label of the deployment's roots. */
  label: () => Promise<string>;
  /** Default: the clock. */
  now?: () => number;
}

export function createHostAuthority({ serviceKeys, label, now }: HostAuthorityOptions): HostAuthority {
  const root = createPlannedRoot({
    serviceKeys,
    name: 'host-root',
    plan: {
      // A root is valid for ten years. Each process learns of the next one with its next certificate, within half a day.
      nextAfterMs: 5 * 365 * DAY_MS,
      overlapMs: 7 * DAY_MS,
      previousMs: 2 * CERTIFICATE_MS,
    },
    make: async () => await makeRoot(await label()),
    now,
  });
  const issue = async (request: string, name: string, side: 'server' | 'client') => {
    const [{ issueLeaf, toPem }, { issuerOf, requestedKey }] = await Promise.all([
      import('@releap/certificates/x509'),
      import('./root-certificate.ts'),
    ]);
    const signing = await root.signing();
    const certificate = await issueLeaf(await issuerOf(signing), {
      hosts: [name],
      side,
      publicKey: await requestedKey(request),
      validMs: CERTIFICATE_MS,
      backdatedMs: BACKDATED_MS,
    });
    return {
      certificate: toPem(certificate),
      signing: signing.certificate,
      roots: await root.trusted(),
      not_after: certificate.notAfter.toISOString(),
    };
  };
  return {
    trusted: () => root.trusted(),
    renew: () => root.renew(),
    async fingerprint() {
      const { certificate } = await root.signing();
      return new X509Certificate(certificate).fingerprint256.replaceAll(':', '').toLowerCase();
    },
    async issue(request, name) {
      const side = name.role === 'runner' ? 'server' : 'client';
      const { signing: _root, ...issued } = await issue(request, hostName(name), side);
      return issued;
    },
    async issueListener(request) {
      const { certificate, signing, ...issued } = await issue(request, CONTROL_NAME, 'server');
      return { ...issued, certificate: `${certificate}${signing}` };
    },
  };
}

/** For `ServiceKeysOptions.makers`. */
export async function makeHostRoot(deploymentId: string): Promise<string> {
  return JSON.stringify(await makeRoot(deploymentId));
}

async function makeRoot(deploymentId: string) {
  const { createRoot } = await import('./root-certificate.ts');
  const commonName = `Releap hosts ${deploymentId.slice(0, 8)}`;
  return await createRoot({ commonName, pathLength: 0, domain: HOST_DOMAIN });
}
