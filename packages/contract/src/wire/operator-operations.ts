/** The operations of the operator plane. They are not part of the public API and its OpenAPI document. */
import { Type } from 'typebox';
import {
  CreditsQuery,
  CreditsRecord,
  GrantList,
  GrantRequest,
  GrantResponse,
  OverdraftRequest,
} from './credits.ts';
import {
  HostDrainRequest,
  HostDrainResponse,
  HostEvictRequest,
  HostEvictResponse,
  HostForgetResponse,
  HostJoinPermission,
  HostList,
  HostParams,
  HostUndrainResponse,
} from './hosts.ts';
import { OperatorAuditList, OperatorAuditQuery } from './operator-audit.ts';
import { OrgParams } from './management.ts';
import type { Operation } from './operation.ts';

const unknownHost = 'There is no such host.';
const unknownOrg = 'There is no such organization.';

export const operatorOperations = {
  listHosts: {
    method: 'GET',
    path: '/operator/hosts',
    tag: 'Hosts',
    summary: 'List all hosts',
    security: 'operator',
    success: { status: 200, response: { description: 'All of them; there are no pages.', schema: HostList } },
    errors: {},
  },
  drainHost: {
    method: 'POST',
    path: '/operator/hosts/:id/drain',
    tag: 'Hosts',
    summary: 'Drain a host: place nothing new on it, and pause, stop or evict its sandboxes',
    security: 'operator',
    params: HostParams,
    body: HostDrainRequest,
    success: { status: 200, response: { description: 'Begun.', schema: HostDrainResponse } },
    errors: { 400: 'A field is not valid.', 404: unknownHost },
  },
  undrainHost: {
    method: 'POST',
    path: '/operator/hosts/:id/undrain',
    tag: 'Hosts',
    summary: 'End the drain of a host',
    security: 'operator',
    params: HostParams,
    success: { status: 200, response: { description: 'Ended.', schema: HostUndrainResponse } },
    errors: { 404: unknownHost },
  },
  evictFromHost: {
    method: 'POST',
    path: '/operator/hosts/:id/evict',
    tag: 'Hosts',
    summary: 'Evict one spot sandbox of a host, or all of them',
    security: 'operator',
    params: HostParams,
    body: HostEvictRequest,
    success: { status: 200, response: { description: 'Begun.', schema: HostEvictResponse } },
    errors: {
      400: 'A field is not valid.',
      404: `${unknownHost} Or the sandbox is not there.`,
      409: 'The sandbox cannot be evicted in its status, or is not in the spot tier.',
    },
  },
  evictSandbox: {
    method: 'POST',
    path: '/operator/vms/:id/evict',
    tag: 'Hosts',
    summary: 'Evict one spot sandbox from its host',
    security: 'operator',
    params: HostParams,
    success: { status: 200, response: { description: 'Begun.', schema: HostEvictResponse } },
    errors: {
      404: 'No host holds such a sandbox.',
      409: 'The sandbox cannot be evicted in its status, or is not in the spot tier.',
    },
  },
  forgetHost: {
    method: 'DELETE',
    path: '/operator/hosts/:id',
    tag: 'Hosts',
    summary: 'Forget a host that is lost',
    description:
      'For a host that will not return. Its resources are released: its sandboxes fail (those that are being deleted are ' +
      'deleted), its snapshots fail, its builds are assigned to other hosts, and its credential is revoked. Idempotent: a ' +
      'repeated call finishes an interrupted one.',
    security: 'operator',
    params: HostParams,
    success: { status: 200, response: { description: 'Forgotten.', schema: HostForgetResponse } },
    errors: { 404: unknownHost, 409: 'The host is not lost.' },
  },
  grantCredits: {
    method: 'POST',
    path: '/operator/orgs/:id/grants',
    tag: 'Credits',
    summary: 'Grant credits to an organization, or adjust its balance',
    security: 'operator',
    params: OrgParams,
    body: GrantRequest,
    idempotency: 'replay',
    success: { status: 200, response: { description: 'Written to the ledger.', schema: GrantResponse } },
    errors: { 400: 'The amount or the note is not valid.', 404: unknownOrg },
  },
  listGrants: {
    method: 'GET',
    path: '/operator/orgs/:id/grants',
    tag: 'Credits',
    summary: 'List the newest grants and adjustments of an organization',
    security: 'operator',
    params: OrgParams,
    query: CreditsQuery,
    success: { status: 200, response: { description: 'Newest first.', schema: GrantList } },
    errors: { 404: unknownOrg },
  },
  setOverdraftLimit: {
    method: 'PUT',
    path: '/operator/orgs/:id/overdraft-limit',
    tag: 'Credits',
    summary: 'Set the overdraft limit of an organization',
    security: 'operator',
    params: OrgParams,
    body: OverdraftRequest,
    success: { status: 200, response: { description: 'Set.', schema: CreditsRecord } },
    errors: { 400: 'The limit is not valid.', 404: unknownOrg },
  },
  permitHostJoin: {
    method: 'POST',
    path: '/operator/hosts/:id/join-permission',
    tag: 'Hosts',
    summary: 'Revoke the credential of a host, and let it join again',
    description:
      'For a host whose credential was stolen or lost. Its connection ends; its sandboxes continue. The token is valid once, ' +
      'for this host: start its runner with it as `RELEAP_JOIN_TOKEN`.',
    security: 'operator',
    params: HostParams,
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
