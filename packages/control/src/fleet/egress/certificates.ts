/**
 * Certificates for the interception of TLS: one root a deployment, and intermediates for runners. Loaded on first use,
 * because the library takes 40 MB and most control servers need it once a week.
 */
import { DAY_MS, issueIntermediate, toPem } from '@releap/certificates/x509';
import type { Root } from '../authority/planned-root.ts';
import { createRoot as createAnyRoot, issuerOf, requestedKey } from '../authority/root-certificate.ts';

const INTERMEDIATE_MS = DAY_MS;
/** Clients refuse chains of more than 100 KiB. */
const NAMES_MAX = 500;

/** @param label distinguishes the roots of deployments for people */
export async function createRoot(label: string): Promise<Root> {
  return await createAnyRoot({ commonName: `Releap egress root ${label}`, pathLength: 1 });
}

/**
 * An intermediate for the key of a request, valid for a day. Names and extensions of the request are ignored.
 * @param domains names and `*.` patterns that it is valid for, with all names below them
 * @throws 400
 */
export async function signIntermediate(
  root: Root,
  request: string,
  runnerId: string,
  domains: readonly string[],
): Promise<{ certificate: string; notAfter: Date }> {
  const publicKey = await requestedKey(request);
  const certificate = await issueIntermediate(await issuerOf(root), {
    commonName: `Releap egress ${runnerId}`,
    publicKey,
    validMs: INTERMEDIATE_MS,
    domains: constraintsOf(domains),
  });
  return { certificate: toPem(certificate), notAfter: certificate.notAfter };
}

/** A constraint permits all names below it, too. Very many domains are replaced by fewer that contain them. */
export function constraintsOf(domains: readonly string[]): string[] {
  const names = [...new Set(domains.map((domain) => domain.replace(/^\*\./, '')))];
  for (const labels of [Infinity, 3, 2, 1]) {
    const cut = names.map((name) => name.split('.').slice(-labels).join('.'));
    const all = new Set(cut);
    const needed = [...all].filter((name) => {
      const parts = name.split('.');
      return !parts.some((_part, at) => at > 0 && all.has(parts.slice(at).join('.')));
    });
    if (needed.length <= NAMES_MAX) return needed.sort();
  }
  return [...new Set(names.map((name) => name.split('.').at(-1) ?? name))].slice(0, NAMES_MAX);
}
