/** The operations of runners. They are not part of the public API and its OpenAPI document. */
import { Type } from 'typebox';
import {
  ARTIFACT_PATH,
  ArtifactParams,
  ArtifactRecord,
  BLOB_PATH,
  BlobParams,
  BlobUploadQuery,
  LocationParams,
  MISSING_BLOBS_PATH,
  MissingBlobsRequest,
  MissingBlobsResponse,
  RUNNER_DATA_KEY_PATH,
  RUNNER_JOIN_PATH,
  RunnerDataKey,
  RunnerJoinRequest,
  RunnerJoinResponse,
} from './internal.ts';
import {
  RUNNER_CERTIFICATE_PATH,
  RUNNER_SECRETS_PATH,
  RunnerCertificate,
  RunnerCertificateRequest,
  RunnerSecrets,
  RunnerSecretsRequest,
} from './internal-secrets.ts';
import type { Operation } from './operation.ts';

export const internalOperations = {
  joinRunner: {
    method: 'POST',
    path: RUNNER_JOIN_PATH,
    tag: 'Runner',
    summary: 'Register the credential of a runner',
    description:
      'With the join token if the runner is new, with its present credential to renew it, or with a permission of the ' +
      'operator. The runner sends the digest of a credential that it has generated. Idempotent.',
    security: 'runner',
    body: RunnerJoinRequest,
    success: { status: 200, response: { description: 'Registered.', schema: RunnerJoinResponse } },
    errors: {
      400: 'A field is not valid.',
      409: 'The runner is already registered, or the credential was registered before.',
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
  readRunnerSecrets: {
    method: 'POST',
    path: RUNNER_SECRETS_PATH,
    tag: 'Runner',
    summary: 'Read the values of the secrets of sandboxes that are assigned to this runner',
    description: 'Only of those whose revision has changed. A sandbox of another runner has no secrets here.',
    security: 'runner',
    body: RunnerSecretsRequest,
    success: { status: 200, response: { description: 'What has changed.', schema: RunnerSecrets } },
    errors: { 503: 'The key-encryption key is temporarily unavailable.' },
  },
  getBlob: {
    method: 'GET',
    path: BLOB_PATH,
    tag: 'Runner',
    summary: 'Read content of the store',
    description: 'Only what something that is assigned to this runner names.',
    security: 'runner',
    params: BlobParams,
    success: {
      status: 200,
      response: {
        description: 'The content.',
        schema: Type.String(),
        contentType: 'application/octet-stream',
      },
    },
    errors: {
      404: 'Nothing that is assigned to this runner names this blob, or the store does not have it.',
      503: 'The store cannot be reached.',
    },
  },
  putBlob: {
    method: 'PUT',
    path: BLOB_PATH,
    tag: 'Runner',
    summary: 'Store a part of an artifact',
    description: 'Only while the runner is to store an artifact at this location. Idempotent.',
    security: 'runner',
    params: BlobParams,
    query: BlobUploadQuery,
    consumes: ['application/octet-stream'],
    upload: { bytes: Number.MAX_SAFE_INTEGER },
    success: { status: 204, response: { description: 'Stored.' } },
    errors: {
      400: 'The content has another digest, or is larger than the artifact can be.',
      404: 'This runner is not to store an artifact at this location.',
      503: 'The store cannot be reached, or is full.',
    },
  },
  listMissingBlobs: {
    method: 'POST',
    path: MISSING_BLOBS_PATH,
    tag: 'Runner',
    summary: 'List the parts of an artifact that are not in the store',
    description:
      'A part that the store has is listed too, unless it belongs to an artifact of the same project.',
    security: 'runner',
    params: LocationParams,
    body: MissingBlobsRequest,
    success: {
      status: 200,
      response: { description: 'What must be uploaded.', schema: MissingBlobsResponse },
    },
    errors: { 404: 'This runner is not to store an artifact at this location.' },
  },
  getArtifact: {
    method: 'GET',
    path: ARTIFACT_PATH,
    tag: 'Runner',
    summary: 'Read the parts of an artifact',
    security: 'runner',
    params: ArtifactParams,
    success: { status: 200, response: { description: 'The parts.', schema: ArtifactRecord } },
    errors: {
      404: 'Nothing that is assigned to this runner needs this artifact.',
      409: 'It is not in the store yet.',
    },
  },
} as const satisfies Record<string, Operation>;
