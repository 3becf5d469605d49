/** The operations of runners. They are not part of the public API and its OpenAPI document. */
import { Type } from 'typebox';
import {
  BLOB_PATH,
  BlobParams,
  RUNNER_DATA_KEY_PATH,
  RUNNER_JOIN_PATH,
  RunnerDataKey,
  RunnerJoinRequest,
  RunnerJoinResponse,
} from './internal.ts';
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
} as const satisfies Record<string, Operation>;
