import type { VariableName } from './variables.ts';

/** Where the certificate of previews comes from. Paths are those of files. */
export type PreviewTls = { port: number } & (
  | { source: 'files'; certificate: string; key: string }
  | { source: 'dev' }
  | { source: 'acme'; acme: AcmeConfig }
);

export interface AcmeConfig {
  directoryUrl: string;
  email?: string;
  binding?: { keyId: string; hmacKeyFile: string };
  caFile?: string;
  dns:
    | { type: 'hook'; program: string; deadlineMs: number }
    | { type: 'update'; server: { host: string; port: number }; keyFile?: string };
  recordName?: string;
  dnsServers?: readonly string[];
  dnsWaitMs: number;
}

const DNS_PORT = 53;

/** @returns what is wrong, or the settings; undefined for no TLS */
export function previewTlsOf(
  get: (name: VariableName) => unknown,
): { problems: readonly string[] } | PreviewTls | undefined {
  const text = (name: VariableName): string | undefined => get(name) as string | undefined;
  const certificate = text('RELEAP_PREVIEW_TLS_CERTIFICATE');
  const key = text('RELEAP_PREVIEW_TLS_KEY');
  const port = get('RELEAP_PREVIEW_TLS_PORT') as number;
  if ((certificate === undefined) !== (key === undefined))
    return { problems: ['RELEAP_PREVIEW_TLS_CERTIFICATE and RELEAP_PREVIEW_TLS_KEY must be set together'] };
  const source = text('RELEAP_PREVIEW_TLS') ?? (certificate === undefined ? 'off' : 'files');
  if (source === 'off') return undefined;
  if (certificate !== undefined && source !== 'files')
    return { problems: [`RELEAP_PREVIEW_TLS=${source} excludes RELEAP_PREVIEW_TLS_CERTIFICATE`] };
  if (source !== 'files') {
    const url = text('RELEAP_PREVIEW_URL');
    const domain = url === undefined ? text('RELEAP_PREVIEW_DOMAIN') : new URL(url).hostname;
    if (domain !== undefined && !domain.includes('.'))
      return {
        problems: [
          `the preview domain ${domain}: with RELEAP_PREVIEW_TLS=${source} it needs at least two labels, as clients ` +
            `accept no certificate for *.${domain}; for example preview.${domain}`,
        ],
      };
  }
  if (source === 'dev') return { port, source };
  if (source === 'acme') {
    const acme = acmeOf(get, text);
    return 'problems' in acme ? acme : { port, source, acme };
  }
  if (certificate === undefined || key === undefined)
    return {
      problems: ['RELEAP_PREVIEW_TLS=files needs RELEAP_PREVIEW_TLS_CERTIFICATE and RELEAP_PREVIEW_TLS_KEY'],
    };
  return { port, source: 'files', certificate, key };
}

function acmeOf(
  get: (name: VariableName) => unknown,
  text: (name: VariableName) => string | undefined,
): { problems: readonly string[] } | AcmeConfig {
  const problems: string[] = [];
  const need = (isMet: boolean, what: string): void => {
    if (!isMet) problems.push(`RELEAP_PREVIEW_TLS=acme needs ${what}`);
  };
  const domain = text('RELEAP_PREVIEW_DOMAIN') ?? text('RELEAP_PREVIEW_URL');
  need(domain !== undefined, 'RELEAP_PREVIEW_DOMAIN');
  need(
    get('RELEAP_ACME_AGREE_TERMS') === 1,
    'RELEAP_ACME_AGREE_TERMS=1, which agrees to the terms of service of the authority',
  );
  const program = text('RELEAP_ACME_DNS_HOOK');
  const server = text('RELEAP_ACME_DNS_SERVER');
  need(
    (program === undefined) !== (server === undefined),
    'either RELEAP_ACME_DNS_HOOK or RELEAP_ACME_DNS_SERVER: wildcard certificates are proved by a DNS record',
  );
  const keyId = text('RELEAP_ACME_EAB_KID');
  const hmacKeyFile = text('RELEAP_ACME_EAB_HMAC_KEY_FILE');
  if ((keyId === undefined) !== (hmacKeyFile === undefined))
    problems.push('RELEAP_ACME_EAB_KID and RELEAP_ACME_EAB_HMAC_KEY_FILE must be set together');
  if (problems.length > 0) return { problems };
  const [, host = '', port] = /^(.*?)(?::(\d+))?$/.exec(server ?? '') ?? [];
  const keyFile = text('RELEAP_ACME_DNS_KEY_FILE');
  const email = text('RELEAP_ACME_EMAIL');
  const caFile = text('RELEAP_ACME_CA_FILE');
  const recordName = text('RELEAP_ACME_DNS_RECORD');
  const dnsServers = get('RELEAP_ACME_DNS_RESOLVERS') as string[] | undefined;
  return {
    directoryUrl: text('RELEAP_ACME_DIRECTORY') ?? '',
    dns:
      program === undefined
        ? {
            type: 'update',
            server: {
              host: host.replace(/^\[|\]$/g, ''),
              port: port === undefined ? DNS_PORT : Number(port),
            },
            ...(keyFile === undefined ? {} : { keyFile }),
          }
        : {
            type: 'hook',
            program,
            deadlineMs: Number(get('RELEAP_ACME_DNS_HOOK_SECONDS')) * 1000,
          },
    dnsWaitMs: Number(get('RELEAP_ACME_DNS_WAIT_SECONDS')) * 1000,
    ...(email === undefined ? {} : { email }),
    ...(caFile === undefined ? {} : { caFile }),
    ...(recordName === undefined ? {} : { recordName }),
    ...(dnsServers === undefined ? {} : { dnsServers }),
    ...(keyId === undefined || hmacKeyFile === undefined ? {} : { binding: { keyId, hmacKeyFile } }),
  };
}
