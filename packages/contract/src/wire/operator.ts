/** The operator plane: hosts, credits, quotas, the audit log and metrics. It has an OpenAPI document of its own. */
import { Type, type Static } from 'typebox';
import { HardwareClass, HardwareClassList, operatorClassOperations } from './compute/hardware-class.ts';
import {
  JoinTokenCreated,
  JoinTokenList,
  JoinTokenRequest,
  operatorJoinTokenOperations,
} from './compute/join-token.ts';
import {
  HostAuthorityRecord,
  HostDrainResponse,
  HostEvictResponse,
  HostForgetResponse,
  HostJoinPermission,
  HostList,
  HostMove,
  HostMoves,
  HostRecord,
  operatorHostOperations,
} from './compute/operator-host.ts';
import { OperatorGlobalRegion, OperatorRegion, operatorRegionOperations } from './compute/operator-region.ts';
import type { ApiResource, Operation } from './platform/operation.ts';
import { CursorParam, nextPage } from './platform/paging.ts';
import {
  CreditsQuery,
  CreditsRecord,
  GrantList,
  GrantRequest,
  GrantResponse,
  OverdraftRequest,
} from './tenancy/credits.ts';
import { OrgParams } from './tenancy/organization.ts';
import { QuotaList, QuotaRequest } from './tenancy/quota.ts';

export const OPERATOR_AUDIT_LIMITS = { min: 1, max: 1000, default: 100 } as const;

export const OperatorAuditQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({
      default: OPERATOR_AUDIT_LIMITS.default,
      description: `Clamped to ${OPERATOR_AUDIT_LIMITS.min}..${OPERATOR_AUDIT_LIMITS.max}.`,
    }),
  ),
  cursor: Type.Optional(CursorParam),
  before: Type.Optional(
    Type.String({
      format: 'date-time',
      description: 'Only calls before this time, as `created_at` of an entry.',
    }),
  ),
});
export type OperatorAuditQuery = Static<typeof OperatorAuditQuery>;

export const OperatorAuditEntry = Type.Object({
  id: Type.String(),
  created_at: Type.String({ format: 'date-time' }),
  actor: Type.Literal('operator'),
  operation: Type.String({ description: 'Name of the operation.' }),
  subject: Type.Union([Type.String(), Type.Null()], { description: 'The host or organization.' }),
  request: Type.Object({}, { additionalProperties: true, description: 'Query and body.' }),
  ip: Type.Union([Type.String(), Type.Null()]),
  request_id: Type.Union([Type.String(), Type.Null()]),
  outcome: Type.Union([Type.Enum(['done', 'refused', 'failed'] as const), Type.Null()], {
    description: 'Null: it is in progress, or the server died.',
  }),
  error: Type.Union([Type.String(), Type.Null()]),
});
export type OperatorAuditEntry = Static<typeof OperatorAuditEntry>;

export const OperatorAuditList = Type.Object({ entries: Type.Array(OperatorAuditEntry), ...nextPage });
export type OperatorAuditList = Static<typeof OperatorAuditList>;

const unknownOrg = 'There is no such organization.';

const onOrg = { tag: 'Credits', security: 'operator', params: OrgParams } as const;

export const operatorOperations = {
  ...operatorRegionOperations,
  ...operatorClassOperations,
  ...operatorJoinTokenOperations,
  ...operatorHostOperations,
  grantCredits: {
    ...onOrg,
    method: 'POST',
    path: '/operator/orgs/:id/grants',
    summary: 'Grant credits to an organization, or adjust its balance',
    body: GrantRequest,
    idempotent: true,
    success: { status: 200, response: { description: 'Written to the ledger.', schema: GrantResponse } },
    errors: { 400: 'The amount or the note is not valid.', 404: unknownOrg },
  },
  listGrants: {
    ...onOrg,
    method: 'GET',
    path: '/operator/orgs/:id/grants',
    summary: 'List the newest grants and adjustments of an organization',
    query: CreditsQuery,
    items: 'grants',
    success: { status: 200, response: { description: 'Newest first.', schema: GrantList } },
    errors: { 404: unknownOrg },
  },
  readQuotas: {
    ...onOrg,
    tag: 'Quotas',
    method: 'GET',
    path: '/operator/orgs/:id/quotas',
    summary: 'Read the quotas of an organization, and what it uses',
    items: 'quotas',
    success: { status: 200, response: { description: 'All quotas.', schema: QuotaList } },
    errors: { 404: unknownOrg },
  },
  setQuotas: {
    ...onOrg,
    tag: 'Quotas',
    method: 'PUT',
    path: '/operator/orgs/:id/quotas',
    summary: 'Set quotas of an organization',
    description: 'Absent ones stay as they are. Null returns to the one of all organizations.',
    body: QuotaRequest,
    success: { status: 200, response: { description: 'All quotas.', schema: QuotaList } },
    errors: { 400: 'A quota is not valid.', 404: unknownOrg },
  },
  setOverdraftLimit: {
    ...onOrg,
    method: 'PUT',
    path: '/operator/orgs/:id/overdraft-limit',
    summary: 'Set the overdraft limit of an organization',
    body: OverdraftRequest,
    success: { status: 200, response: { description: 'Set.', schema: CreditsRecord } },
    errors: { 400: 'The limit is not valid.', 404: unknownOrg },
  },
  getHostAuthority: {
    method: 'GET',
    path: '/operator/host-authority',
    tag: 'Operator',
    summary: 'Read the root of the certificates of hosts',
    description:
      'Machines of the deployment verify the control plane with it: the fingerprint is `RELEAP_CONTROL_FINGERPRINT`.',
    security: 'operator',
    success: { status: 200, response: { description: 'The root.', schema: HostAuthorityRecord } },
    errors: { 503: 'The key of the root is temporarily unavailable.' },
  },
  listOperatorAudit: {
    method: 'GET',
    path: '/operator/audit',
    tag: 'Operator',
    summary: "List the operator's audit log",
    security: 'operator',
    query: OperatorAuditQuery,
    items: 'entries',
    success: { status: 200, response: { description: 'Newest first.', schema: OperatorAuditList } },
    errors: { 400: 'A query parameter is not valid.' },
  },
  getMetrics: {
    method: 'GET',
    path: '/metrics',
    tag: 'Operator',
    summary: 'Read the metrics of this server, in the Prometheus text format',
    security: 'operator',
    success: {
      status: 200,
      response: {
        description: 'One line a value.',
        schema: Type.String(),
        contentType: 'text/plain; version=0.0.4',
      },
    },
    errors: {},
  },
} as const satisfies Record<string, Operation>;

export const operatorResource = {
  tags: {
    Regions: 'Where sandboxes may be placed.',
    'Hardware classes': 'Classes of the hardware of hosts, which sandboxes may ask for.',
    Hosts: 'Hosts of the service.',
    Credits: 'Credits of organizations.',
    Quotas: 'Quotas of organizations.',
    Operator: 'The audit log and the metrics.',
  },
  operations: operatorOperations,
  schemas: {
    OperatorRegion,
    OperatorGlobalRegion,
    OperatorHardwareClass: HardwareClass,
    HardwareClassList,
    Host: HostRecord,
    HostList,
    HostDrained: HostDrainResponse,
    HostMove,
    HostMoves,
    HostEvicted: HostEvictResponse,
    HostForgotten: HostForgetResponse,
    HostJoinPermission,
    JoinTokenRequest,
    JoinTokenCreated,
    JoinTokenList,
    GrantRequest,
    Granted: GrantResponse,
    GrantList,
    QuotaRequest,
    OperatorAuditEntry,
    OperatorAuditList,
  },
} as const satisfies ApiResource;
