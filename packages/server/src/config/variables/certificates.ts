/** The certificate of previews (docs/previews.md). */
import { isIP } from 'node:net';
import { PREVIEW_CERTIFICATE_SOURCES } from '@releap/contract/preview-certificate';
import { Type } from 'typebox';
import { AbsolutePath, HttpUrl, variable } from './variable.ts';

/** `host` or `host:port`; IPv6 in brackets. */
const HOST = '(\\[[0-9A-Fa-f:]+\\]|[0-9A-Za-z._-]+)';
const DomainName = Type.String({
  pattern: '^[a-z0-9_-]+(\\.[a-z0-9_-]+)*$',
  expected: 'a domain name in lower case',
});

/** An address with an optional port. */
function isServer(text: string): boolean {
  const [, address = '', port] = /^\[?([0-9A-Fa-f.:]+?)\]?(?::(\d{1,5}))?$/.exec(text) ?? [];
  return isIP(address) !== 0 && (isIP(address) === 4 || text.startsWith('[') || port === undefined);
}

export const CERTIFICATES = {
  RELEAP_PREVIEW_TLS: variable({
    schema: Type.Enum(['off', ...PREVIEW_CERTIFICATE_SOURCES]),
    defaultText: '`files` with `RELEAP_PREVIEW_TLS_CERTIFICATE`, else `off`',
    description:
      'Where the certificate of previews comes from: `files` of the operator, `dev` (a CA of this home, which clients have to ' +
      "trust), or `acme` (an authority such as Let's Encrypt).",
    group: 'Certificate of previews',
  }),
  RELEAP_PREVIEW_TLS_CERTIFICATE: variable({
    schema: AbsolutePath,
    defaultText: 'none',
    description:
      'With `files`: file with a certificate (PEM, with its chain) for all names below `RELEAP_PREVIEW_DOMAIN`. Read again every ' +
      'minute.',
    group: 'Certificate of previews',
  }),
  RELEAP_PREVIEW_TLS_KEY: variable({
    schema: AbsolutePath,
    defaultText: 'none',
    description: 'With `files`: file with the key (PEM) of that certificate.',
    group: 'Certificate of previews',
  }),
  RELEAP_ACME_DIRECTORY: variable({
    schema: HttpUrl,
    default: 'https://acme-v02.api.letsencrypt.org/directory',
    description: 'With `acme`: directory of the authority.',
    group: 'Certificate of previews',
  }),
  RELEAP_ACME_AGREE_TERMS: variable({
    schema: Type.Integer({ minimum: 0, maximum: 1 }),
    default: 0,
    description: 'With `acme`: 1 agrees to the terms of service of the authority. Needed.',
    group: 'Certificate of previews',
  }),
  RELEAP_ACME_EMAIL: variable({
    schema: Type.String({
      pattern: '^[^\\s@,?]+@[^\\s@,?]+$',
      maxLength: 254,
      expected: 'an e-mail address',
    }),
    description: 'Address for notices of the authority.',
    group: 'Certificate of previews',
  }),
  RELEAP_ACME_EAB_KID: variable({
    schema: Type.String({ pattern: '^\\S{1,1024}$', expected: 'text without spaces' }),
    description: 'External account binding: id of the key that the authority gave.',
    group: 'Certificate of previews',
  }),
  RELEAP_ACME_EAB_HMAC_KEY_FILE: variable({
    schema: AbsolutePath,
    defaultText: 'none',
    description: 'External account binding: file with that key (base64url), readable only by its owner.',
    group: 'Certificate of previews',
  }),
  RELEAP_ACME_CA_FILE: variable({
    schema: AbsolutePath,
    defaultText: 'only those of the host',
    description:
      'File with certificates of authorities (PEM) that `RELEAP_ACME_DIRECTORY` may be verified with, besides those of the host.',
    group: 'Certificate of previews',
  }),
  RELEAP_ACME_DNS_HOOK: variable({
    schema: AbsolutePath,
    defaultText: 'none',
    description:
      'Program that publishes and removes the TXT record of a challenge: `HOOK present NAME VALUE`, `HOOK cleanup NAME VALUE`. ' +
      'This, or `RELEAP_ACME_DNS_SERVER`.',
    group: 'Certificate of previews',
  }),
  RELEAP_ACME_DNS_HOOK_SECONDS: variable({
    schema: Type.Integer({ minimum: 1, maximum: 600 }),
    default: 120,
    unit: 'seconds',
    description: 'Deadline of one call of the hook; then it is killed.',
    group: 'Certificate of previews',
  }),
  RELEAP_ACME_DNS_SERVER: variable({
    schema: Type.String({
      pattern: `^${HOST}(:\\d{1,5})?$`,
      expected: 'a host name or an address, with an optional :port',
    }),
    description:
      "Primary DNS server of the record's zone, for dynamic updates (RFC 2136). Needs `nsupdate` (Debian: bind9-dnsutils).",
    group: 'Certificate of previews',
  }),
  RELEAP_ACME_DNS_KEY_FILE: variable({
    schema: AbsolutePath,
    defaultText: 'none: updates are not signed',
    description: 'File with the TSIG key of these updates, as `tsig-keygen` prints it.',
    group: 'Certificate of previews',
  }),
  RELEAP_ACME_DNS_RECORD: variable({
    schema: DomainName,
    defaultText: '`_acme-challenge.<preview domain>`',
    description: 'Name of the TXT record, where the default one is a CNAME to it.',
    group: 'Certificate of previews',
  }),
  RELEAP_ACME_DNS_RESOLVERS: variable({
    schema: Type.Array(Type.Refine(Type.String(), isServer), {
      minItems: 1,
      expected: 'addresses of DNS servers with optional ports, separated by commas',
    }),
    defaultText: "the authoritative servers of the record's zone",
    description: 'DNS servers that must answer with the record before the authority is told.',
    group: 'Certificate of previews',
  }),
  RELEAP_ACME_DNS_WAIT_SECONDS: variable({
    schema: Type.Integer({ minimum: 0, maximum: 3600 }),
    default: 300,
    unit: 'seconds',
    description: 'How long to wait for them at most. 0: the authority is told at once.',
    group: 'Certificate of previews',
  }),
} as const;
