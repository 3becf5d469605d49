/** Invocations that gateways serve and have served: `POST`, with the credential of the gateways. */
import { Type, type Static } from 'typebox';
import { Uuid } from '../platform/fields.ts';
import type { Operation } from '../platform/operation.ts';
import { HostCertificateRequest, HostCertificateResponse } from './runner.ts';

export const INVOCATIONS_PATH = '/internal/functions/invocations';
export const RUNNING_INVOCATIONS_PATH = '/internal/functions/invocations/running';
/** How often a gateway reports what runs, in milliseconds: so much of an invocation is uncharged, at most. */
export const RUNNING_INVOCATIONS_MS = 30_000;
/** Most of one request. */
export const INVOCATIONS_BATCH_MAX = 500;
/** Longest reason of a failure, in characters. */
export const INVOCATION_ERROR_MAX_CHARS = 2_000;

const Time = Type.String({ format: 'date-time' });

const identity = {
  id: Uuid,
  queued_at: Time,
  function_id: Uuid,
  version_id: Uuid,
  version: Type.Integer({ minimum: 1 }),
  source: Type.Enum(['invoke', 'public']),
};

export const ServedInvocation = Type.Object({
  ...identity,
  status: Type.Enum(['succeeded', 'failed', 'timeout', 'shed']),
  /** When the handler got it; null when it never did. */
  started_at: Type.Union([Time, Type.Null()]),
  finished_at: Time,
  /** From the first byte sent to the last one received; null when the handler did not get it. */
  duration_ms: Type.Union([Type.Number({ minimum: 0 }), Type.Null()]),
  cold: Type.Union([Type.Boolean(), Type.Null()]),
  error: Type.Union([Type.String({ maxLength: INVOCATION_ERROR_MAX_CHARS }), Type.Null()]),
});
export type ServedInvocation = Static<typeof ServedInvocation>;

export const RecordInvocationsRequest = Type.Object({
  invocations: Type.Array(ServedInvocation, { minItems: 1, maxItems: INVOCATIONS_BATCH_MAX }),
});
export type RecordInvocationsRequest = Static<typeof RecordInvocationsRequest>;

/** An invocation whose handler has it. */
export const RunningInvocation = Type.Object({
  ...identity,
  /** Of one that the control plane has sent; null for one of a client, which has no row yet. */
  attempt: Type.Union([Type.Integer({ minimum: 1 }), Type.Null()]),
  started_at: Time,
  /** Since the first byte was sent, on a monotonic clock. */
  elapsed_ms: Type.Number({ minimum: 0 }),
  cold: Type.Boolean(),
});
export type RunningInvocation = Static<typeof RunningInvocation>;

export const ReportRunningInvocationsRequest = Type.Object({
  invocations: Type.Array(RunningInvocation, { minItems: 1, maxItems: INVOCATIONS_BATCH_MAX }),
});
export type ReportRunningInvocationsRequest = Static<typeof ReportRunningInvocationsRequest>;

/** `POST`, by a gateway: a certificate with which it connects to runners on other machines. */
export const GATEWAY_CERTIFICATE_PATH = '/internal/gateways/certificate';

export const GatewayCertificateRequest = Type.Object({
  /** Of this process. */
  gateway_id: Uuid,
  ...HostCertificateRequest.properties,
});

export const internalGatewayOperations = {
  issueGatewayCertificate: {
    method: 'POST',
    path: GATEWAY_CERTIFICATE_PATH,
    tag: 'Gateway',
    summary: 'Issue the certificate with which a gateway connects to runners on other machines',
    description: 'It is valid for a day.',
    security: 'gateway',
    body: GatewayCertificateRequest,
    success: { status: 200, response: { description: 'The certificate.', schema: HostCertificateResponse } },
    errors: {
      400: 'The request is not signed by its key, or its key is not one of P-256.',
      503: 'The key of the root is temporarily unavailable.',
    },
  },
  recordInvocations: {
    method: 'POST',
    path: INVOCATIONS_PATH,
    tag: 'Gateway',
    summary: 'Record invocations that a gateway has served',
    description:
      'May be repeated: each is stored and charged once. Those of a deleted function are not stored.',
    security: 'gateway',
    body: RecordInvocationsRequest,
    success: { status: 204, response: { description: 'Recorded.' } },
    errors: { 400: 'An invocation cannot be stored.' },
  },
  reportRunningInvocations: {
    method: 'POST',
    path: RUNNING_INVOCATIONS_PATH,
    tag: 'Gateway',
    summary: 'Report invocations that run on a gateway',
    description: 'Charges their time so far. May be repeated: each part of it is charged once.',
    security: 'gateway',
    body: ReportRunningInvocationsRequest,
    success: { status: 204, response: { description: 'Charged.' } },
    errors: {},
  },
} as const satisfies Record<string, Operation>;
