/** Host names of previews: `<port>-<sandbox id>.<preview domain>`, and `<port>-<token>.<preview domain>` of links. */

export interface PreviewHost {
  port: number;
  /** As the client names it, or the token of a link; control decides whether it exists. */
  sandbox: string;
  /** Host and port for clients, from the request: characters of host names only. */
  authority: string;
}

/**
 * Parses a `Host` header.
 * @returns undefined when it is not below the preview domain; null when it is, and names no port of a sandbox
 */
export function parsePreviewHost(header: string | undefined, domain: string): PreviewHost | null | undefined {
  const match = /^([a-z0-9.-]+?)\.?(:[0-9]{1,5})?$/.exec(header?.toLowerCase() ?? '');
  const host = match?.[1] ?? '';
  if (!host.endsWith(`.${domain}`)) return undefined;
  const label = host.slice(0, -domain.length - 1);
  const [, digits = '', sandbox = ''] = /^([1-9][0-9]{0,4})-([a-z0-9-]+)$/.exec(label) ?? [];
  const port = Number(digits);
  if (sandbox === '' || port > 65_535) return null;
  return { port, sandbox, authority: `${host}${match?.[2] ?? ''}` };
}
