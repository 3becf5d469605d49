/**
 * How runners join and link, their credentials and certificates, the tokens for their data servers, and the deleted projects. Each
 * runner has its own credential (docs/security.md).
 */
import { Type, type Static } from 'typebox';
import { Uuid } from '../platform/fields.ts';
import type { Operation } from '../platform/operation.ts';

/** The path of the WebSocket that runners dial; see docs/runner-protocol.md. */
export const RUNNER_LINK_PATH = '/internal/runners/link';

/** `POST`, by a machine that becomes a runner, with a join token, its present credential or a permission to join. */
export const RUNNER_JOIN_PATH = '/internal/runners/join';

export const RunnerJoinRequest = Type.Object({
  runner_id: Uuid,
  /** SHA-256 of the credential that the runner has generated, in hexadecimal. */
  credential_sha256: Type.String({ pattern: '^[0-9a-f]{64}$' }),
  /** The newest version of the runner protocol that the runner speaks. Runners of earlier versions leave it out, and the next field too. */
  protocol: Type.Optional(Type.Integer()),
  /** The deployment that the machine has joined before. */
  deployment_id: Type.Optional(Uuid),
});
export type RunnerJoinRequest = Static<typeof RunnerJoinRequest>;

export const RunnerJoinResponse = Type.Object({
  runner_id: Type.String(),
  /** Absent from control servers of earlier versions. */
  deployment_id: Type.Optional(Type.String()),
});
export type RunnerJoinResponse = Static<typeof RunnerJoinResponse>;

/** `POST`, by a runner: the key with which it verifies data tokens. */
export const RUNNER_DATA_KEY_PATH = '/internal/runners/data-key';

export const RunnerDataKey = Type.Object({
  /** Name of the key in the header (`kid`) of data tokens. */
  key_id: Type.String(),
  /** base64url. */
  key: Type.String({ writeOnly: true }),
  /** The runner's credential is old: it should renew it. */
  renew: Type.Boolean(),
});
export type RunnerDataKey = Static<typeof RunnerDataKey>;

/**
 * Data tokens are JWTs, HS256: `aud` is the runner's id, `sub` the sandbox's UUID, `kid` names the runner's key.
 * A token is valid for this long.
 */
export const DATA_TOKEN_TTL_MS = 60_000;
/** How far the clocks of control plane and runner may differ. */
export const DATA_TOKEN_SKEW_MS = 30_000;

export const DELETED_PROJECTS_PATH = '/internal/projects/deleted';
/** Most projects of one request. */
export const DELETED_PROJECTS_MAX = 1_000;

/** `POST`, by a runner: projects of which it has something without an assignment, such as a layer cache of builds. */
export const DeletedProjectsRequest = Type.Object({
  projects: Type.Array(Uuid, { maxItems: DELETED_PROJECTS_MAX }),
});
export const DeletedProjectsResponse = Type.Object({
  deleted: Type.Array(Uuid, { description: 'Those that have been deleted.' }),
});
export type DeletedProjectsResponse = Static<typeof DeletedProjectsResponse>;

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

/** `POST`, by a runner: a certificate for its data server, which names the runner. */
export const RUNNER_HOST_CERTIFICATE_PATH = '/internal/runners/certificate';

export const HostCertificateRequest = RunnerCertificateRequest;

/** What a process of the deployment shows to others, and verifies them with. */
export const HostCertificateResponse = Type.Object({
  certificate: CertificatePem,
  /** Roots of the deployment: while the root is being replaced there are two. */
  roots: CertificatePem,
  /** The process requests another one before. */
  not_after: Type.String(),
});
export type HostCertificateResponse = Static<typeof HostCertificateResponse>;

/** `POST`, by a runner: whether this control server can connect to its data server. */
export const RUNNER_REACH_PATH = '/internal/runners/reach';

export const RunnerReachRequest = Type.Object({
  data_url: Type.String({
    maxLength: 512,
    pattern: '^https://[^\\s/?#@]+/?$',
    expected: 'https://host:port',
  }),
});
export const RunnerReach = Type.Object({
  /** Why it cannot. */
  error: Type.Optional(Type.String()),
});
export type RunnerReach = Static<typeof RunnerReach>;

export const internalRunnerOperations = {
  joinRunner: {
    method: 'POST',
    path: RUNNER_JOIN_PATH,
    tag: 'Runner',
    summary: 'Register the credential of a runner',
    description:
      'With a join token if the runner is new, with its present credential to renew it, or with a permission of the ' +
      'operator. The runner sends the digest of a credential that it has generated. Idempotent.',
    security: 'runner',
    body: RunnerJoinRequest,
    success: { status: 200, response: { description: 'Registered.', schema: RunnerJoinResponse } },
    errors: {
      400: 'A field is not valid.',
      409: 'The runner is already registered, the credential was registered before, or the machine is of another deployment or of too early a version.',
    },
  },
  getRunnerDataKey: {
    method: 'POST',
    path: RUNNER_DATA_KEY_PATH,
    tag: 'Runner',
    summary: 'Read the key that verifies data tokens for this runner',
    security: 'runner',
    success: { status: 200, response: { description: 'The key.', schema: RunnerDataKey } },
    errors: {},
  },
  issueRunnerCertificate: {
    method: 'POST',
    path: RUNNER_CERTIFICATE_PATH,
    tag: 'Runner',
    summary: 'Issue an intermediate certificate for the key with which this runner intercepts TLS',
    security: 'runner',
    body: RunnerCertificateRequest,
    success: { status: 200, response: { description: 'The certificate.', schema: RunnerCertificate } },
    errors: {
      400: 'The request is not signed by its key, or its key is not one of P-256.',
      503: 'The key of the root is temporarily unavailable.',
    },
  },
  issueRunnerHostCertificate: {
    method: 'POST',
    path: RUNNER_HOST_CERTIFICATE_PATH,
    tag: 'Runner',
    summary: 'Issue the certificate of the data server of this runner',
    description: 'It is valid for a day, and names this runner whatever the request names.',
    security: 'runner',
    body: HostCertificateRequest,
    success: { status: 200, response: { description: 'The certificate.', schema: HostCertificateResponse } },
    errors: {
      400: 'The request is not signed by its key, or its key is not one of P-256.',
      503: 'The key of the root is temporarily unavailable.',
    },
  },
  checkRunnerReach: {
    method: 'POST',
    path: RUNNER_REACH_PATH,
    tag: 'Runner',
    summary: 'Connect to the data server of this runner',
    description: 'Ends the connection after the handshake. It must show a certificate of this runner.',
    security: 'runner',
    body: RunnerReachRequest,
    success: { status: 200, response: { description: 'Whether that is possible.', schema: RunnerReach } },
    errors: {},
  },
  listDeletedProjects: {
    method: 'POST',
    path: DELETED_PROJECTS_PATH,
    tag: 'Runner',
    summary: 'List those of these projects that have been deleted',
    description: 'A project that never existed is not listed: nothing is removed because it is unknown.',
    security: 'runner',
    body: DeletedProjectsRequest,
    success: { status: 200, response: { description: 'The deleted ones.', schema: DeletedProjectsResponse } },
    errors: {},
  },
} as const satisfies Record<string, Operation>;
