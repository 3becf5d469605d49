/** HTTP operations of runners with which secrets are replaced at egress: values, and certificates for interception. */
import { Type, type Static } from 'typebox';
import { Uuid } from './platform/fields.ts';
import { Revision } from './internal-revisions.ts';

const Sha256 = Type.String({ pattern: '^[0-9a-f]{64}$' });
/** A certificate, or some, as PEM. */
export const CertificatePem = Type.String({
  maxLength: 16_384,
  pattern: '^-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\\s-]+-----END CERTIFICATE-----\\s*$',
});

/** `POST`, by a runner: an intermediate certificate for the key with which it intercepts TLS. */
export const RUNNER_CERTIFICATE_PATH = '/internal/runners/egress-certificate';

export const RunnerCertificateRequest = Type.Object({
  /** PKCS #10 request, DER as base64. Only its key and signature count. */
  request: Type.String({ minLength: 1, maxLength: 4096, pattern: '^[A-Za-z0-9+/]+={0,2}$' }),
});

export const RunnerCertificate = Type.Object({
  certificate: CertificatePem,
  /** The deployment's root, which guests trust. */
  root: CertificatePem,
  /** The runner requests another one before. */
  not_after: Type.String(),
});
export type RunnerCertificate = Static<typeof RunnerCertificate>;

/** `POST`, by a runner: the values of the secrets of its sandboxes that have changed. */
export const RUNNER_SECRETS_PATH = '/internal/runners/secrets';
/** One secret of a sandbox. */
export const SandboxSecret = Type.Object({
  name: Type.String(),
  value: Type.String({ writeOnly: true }),
  /** Host names and `*.` patterns. */
  allowed_domains: Type.Array(Type.String()),
  /** Absent: the value may not be sent over plain HTTP. */
  allow_http: Type.Optional(Type.Boolean()),
  /** SHA-256 of the placeholders that stand for it in this sandbox. */
  placeholders: Type.Array(Sha256),
});
export type SandboxSecret = Static<typeof SandboxSecret>;

export const RunnerSecrets = Type.Object({
  /** Those whose secrets differ from the revision of the request. A sandbox without secrets has an empty list. */
  sandboxes: Type.Array(
    Type.Object({ id: Uuid, revision: Revision, secrets: Type.Array(SandboxSecret, { maxItems: 4_096 }) }),
  ),
  /** The answer is full: others have changed too. */
  more: Type.Boolean(),
});
export type RunnerSecrets = Static<typeof RunnerSecrets>;
