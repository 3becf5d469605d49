import { createPrivateKey, X509Certificate } from 'node:crypto';

/** What a TLS server needs, as PEM. */
export interface CertificatePair {
  /** The certificate, and after it its intermediates. */
  certificate: string;
  key: string;
}

export interface CertificateFacts {
  subject: string;
  issuer: string;
  notBefore: Date;
  notAfter: Date;
  /** SHA-256 of the certificate, as hexadecimal pairs with colons. */
  fingerprint: string;
}

/** Labels such as those of previews: `<port>-<sandbox id>`. */
const PROBE = '8080-probe';

/**
 * Reads a certificate, and checks that it can serve the names below a domain. An expired one passes: clients decide.
 * @throws an error for people
 */
export function inspectPair({ certificate, key }: CertificatePair, domain: string): CertificateFacts {
  const leaf = parse('the certificate', () => new X509Certificate(certificate));
  const privateKey = parse('the key', () => createPrivateKey(key));
  if (!leaf.checkPrivateKey(privateKey)) throw new Error('the key does not belong to the certificate');
  if (leaf.checkHost(`${PROBE}.${domain}`) === undefined)
    throw new Error(
      `the certificate is not valid for names below ${domain}: it is for ${leaf.subjectAltName ?? 'no name'}; ` +
        `*.${domain} is needed`,
    );
  return factsOf(leaf);
}

export function factsOf(certificate: X509Certificate): CertificateFacts {
  return {
    subject: oneLine(certificate.subject),
    issuer: oneLine(certificate.issuer),
    notBefore: certificate.validFromDate,
    notAfter: certificate.validToDate,
    fingerprint: certificate.fingerprint256,
  };
}

/** When two thirds of its life are over. */
export function renewalTime({ notBefore, notAfter }: CertificateFacts): Date {
  const life = notAfter.getTime() - notBefore.getTime();
  return new Date(notBefore.getTime() + (life * 2) / 3);
}

const CERTIFICATE = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----\r?\n?/g;
const PRIVATE_KEY = /-----BEGIN ([A-Z]+ )?PRIVATE KEY-----[^-]+-----END ([A-Z]+ )?PRIVATE KEY-----\r?\n?/;

/** Both in one text: a file with it is replaced in one step. */
export const joinPair = ({ certificate, key }: CertificatePair): string =>
  `${certificate.trim()}\n${key.trim()}\n`;

/** The opposite of `joinPair`. @throws when a part is absent */
export function splitPair(text: string): CertificatePair {
  const certificate = text.match(CERTIFICATE)?.join('');
  const key = PRIVATE_KEY.exec(text)?.[0];
  if (certificate === undefined || key === undefined)
    throw new Error(`there is no ${certificate === undefined ? 'certificate' : 'key'} in it`);
  return { certificate, key };
}

function parse<T>(what: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    throw new Error(`${what} cannot be read: ${error instanceof Error ? error.message : String(error)}`, {
      cause: error,
    });
  }
}

/** Node separates the parts of a name by line feeds. */
const oneLine = (name: string): string => name.split('\n').join(', ');
