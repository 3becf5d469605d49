/** The operations of the operator plane. They are not part of the public API and its OpenAPI document. */
import { Type } from 'typebox';
import {
  CreditsQuery,
  CreditsRecord,
  GrantList,
  GrantRequest,
  GrantResponse,
  OverdraftRequest,
} from './tenancy/credits.ts';
import {
  HostDrainRequest,
  HostDrainResponse,
  HostEvictRequest,
  HostEvictResponse,
  HostForgetResponse,
  HostJoinPermission,
  HostList,
  HostParams,
  HostRecord,
  HostUndrainResponse,
} from './hosts.ts';
import { OperatorAuditEntry, OperatorAuditList, OperatorAuditQuery } from './operator-audit.ts';
import { OrgParams } from './tenancy/organization.ts';
import { QuotaList, QuotaRequest } from './tenancy/quota.ts';
import type { Operation, ApiResource } from './platform/operation.ts';
import { OptionalPageQuery } from './platform/paging.ts';

const unknownHost = 'There is no such host.';
const unknownOrg = 'There is no such organization.';

const onHost = { tag: 'Hosts', security: 'operator', params: HostParams } as const;
const onOrg = { tag: 'Credits', security: 'operator', params: OrgParams } as const;

export const operatorOperations = {
  listHosts: {
    method: 'GET',
    path: '/operator/hosts',
    tag: 'Hosts',
    summary: 'List all hosts',
    security: 'operator',
    query: OptionalPageQuery,
    items: 'hosts',
    success: { status: 200, response: { description: 'One page, or all of them, by id.', schema: HostList } },
    errors: {},
  },
  drainHost: {
    ...onHost,
    method: 'POST',
    path: '/operator/hosts/:id/drain',
    summary: 'Drain a host: place nothing new on it, and pause, stop or evict its sandboxes',
    body: HostDrainRequest,
    success: { status: 200, response: { description: 'Begun.', schema: HostDrainResponse } },
    errors: { 400: 'A field is not valid.', 404: unknownHost },
  },
  undrainHost: {
    ...onHost,
    method: 'POST',
    path: '/operator/hosts/:id/undrain',
    summary: 'End the drain of a host',
    success: { status: 200, response: { description: 'Ended.', schema: HostUndrainResponse } },
    errors: { 404: unknownHost },
  },
  evictFromHost: {
    ...onHost,
    method: 'POST',
    path: '/operator/hosts/:id/evict',
    summary: 'Evict one spot sandbox of a host, or all of them',
    body: HostEvictRequest,
    success: { status: 200, response: { description: 'Begun.', schema: HostEvictResponse } },
    codes: ['sandbox_not_found', 'wrong_state'],
    errors: {
      400: 'A field is not valid.',
      404: `${unknownHost} Or the sandbox is not there.`,
      409: 'The sandbox cannot be evicted in its status, or is not in the spot tier.',
    },
  },
  evictSandbox: {
    ...onHost,
    method: 'POST',
    path: '/operator/vms/:id/evict',
    summary: 'Evict one spot sandbox from its host',
    success: { status: 200, response: { description: 'Begun.', schema: HostEvictResponse } },
    codes: ['wrong_state'],
    errors: {
      404: 'No host holds such a sandbox.',
      409: 'The sandbox cannot be evicted in its status, or is not in the spot tier.',
    },
  },
  forgetHost: {
    ...onHost,
    method: 'DELETE',
    path: '/operator/hosts/:id',
    summary: 'Forget a host that is lost',
    description:
      'For a host that will not return. Its resources are released: its sandboxes fail (those that are being deleted are ' +
      'deleted), its snapshots fail, its builds are assigned to other hosts, and its credential is revoked. Idempotent: a ' +
      'repeated call finishes an interrupted one.',
    success: { status: 200, response: { description: 'Forgotten.', schema: HostForgetResponse } },
    codes: ['host_not_lost'],
    errors: { 404: unknownHost, 409: 'The host is not lost.' },
  },
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
  permitHostJoin: {
    ...onHost,
    method: 'POST',
    path: '/operator/hosts/:id/join-permission',
    summary: 'Revoke the credential of a host, and let it join again',
    description:
      'For a host whose credential was stolen or lost. Its connection ends; its sandboxes continue. The token is valid once, ' +
      'for this host: start its runner with it as `RELEAP_JOIN_TOKEN`.',
    success: { status: 200, response: { description: 'Revoked.', schema: HostJoinPermission } },
    errors: { 404: unknownHost },
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
    Hosts: 'Hosts of the service.',
    Credits: 'Credits of organizations.',
    Quotas: 'Quotas of organizations.',
    Operator: 'The audit log and the metrics.',
  },
  operations: operatorOperations,
  schemas: {
    Host: HostRecord,
    HostList,
    HostDrained: HostDrainResponse,
    HostEvicted: HostEvictResponse,
    HostForgotten: HostForgetResponse,
    HostJoinPermission,
    GrantRequest,
    Granted: GrantResponse,
    GrantList,
    QuotaRequest,
    OperatorAuditEntry,
    OperatorAuditList,
  },
} as const satisfies ApiResource;
