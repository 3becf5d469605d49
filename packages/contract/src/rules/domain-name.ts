/** Domains and wildcard domains of allow-lists. Pure. */

export interface DomainPattern {
  /** Lower case, without a final dot. */
  domain: string;
  /** It matches every name below `domain`, and not `domain` itself. */
  wildcard: boolean;
}

const LABEL = /^[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?$/;
/** RFC 1035 §2.3.4, without the final dot. */
const DOMAIN_CHARS = 253;

/** Reads `example.com` or `*.example.com`; null for everything else: addresses, schemes, paths, ports, a bare `*`. */
export function parseDomainPattern(text: string): DomainPattern | null {
  const wildcard = text.startsWith('*.');
  const domain = (wildcard ? text.slice(2) : text).toLowerCase().replace(/\.$/, '');
  if (domain.length > DOMAIN_CHARS) return null;
  const labels = domain.split('.');
  // A last label of digits only is a mistyped address; no such top level domain exists.
  if (!labels.every((label) => LABEL.test(label)) || /^\d+$/.test(labels.at(-1) ?? '')) return null;
  return { domain, wildcard };
}

/** The canonical pattern. */
export function formatDomainPattern({ domain, wildcard }: DomainPattern): string {
  return wildcard ? `*.${domain}` : domain;
}
