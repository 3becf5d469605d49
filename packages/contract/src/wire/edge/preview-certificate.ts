/** The certificate of previews on the machine of a gateway: files below the service's home. */
import { Type, type Static } from 'typebox';

/** Below `$RELEAP_HOME`. */
export const PREVIEW_CERTIFICATE_FILES = {
  /** `PreviewCertificateStatus`. */
  status: 'certificates/previews.json',
  /** What is served: the certificate, its intermediates and the key, as PEM. */
  pair: 'certificates/previews.pem',
} as const;

/** The root of the development CA for a domain, below `$RELEAP_HOME`. */
export const devRootFile = (domain: string): string => `certificates/dev/${domain}/root.pem`;

export const PREVIEW_CERTIFICATE_SOURCES = ['files', 'dev', 'acme'] as const;

const Time = Type.String({ format: 'date-time' });

export const PreviewCertificateStatus = Type.Object({
  source: Type.Enum(PREVIEW_CERTIFICATE_SOURCES),
  /** The certificate is for all names directly below it. */
  domain: Type.String(),
  /** Absent without a usable certificate. */
  certificate: Type.Optional(
    Type.Object({ issuer: Type.String(), fingerprint: Type.String(), not_after: Time }),
  ),
  /** When it will be replaced; absent where the operator does that. */
  renew_at: Type.Optional(Time),
  /** Why there is no certificate, or why a newer one is not used. */
  problem: Type.Optional(Type.String()),
  /** Attempts at a new certificate that failed in a row, and when the last one began. */
  failures: Type.Integer({ minimum: 0 }),
  attempted_at: Type.Optional(Time),
  next_attempt_at: Type.Optional(Time),
});
export type PreviewCertificateStatus = Static<typeof PreviewCertificateStatus>;
