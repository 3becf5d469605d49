/** Preview endpoints: ports of sandboxes with a URL. */
import { Type, type Static } from 'typebox';
import { SandboxParams } from '../compute/sandbox-record.ts';
import { UpdatedAt } from '../platform/fields.ts';
import { BOUNDS } from '../platform/limits.ts';
import type { ApiResource, Operation } from '../platform/operation.ts';
import { nextPage, OptionalPageQuery } from '../platform/paging.ts';

const Port = Type.Integer({ minimum: 1, maximum: 65_535, description: 'Port in the sandbox.' });

export const EndpointCreateRequest = Type.Object({
  port: Port,
  public: Type.Optional(Type.Boolean({ default: false, description: 'Reachable without a credential.' })),
});
export type EndpointCreateRequest = Static<typeof EndpointCreateRequest>;

export const EndpointUpdateRequest = Type.Object({
  public: Type.Boolean({ description: 'Takes effect within a second.' }),
});

export const EndpointRecord = Type.Object({
  id: Type.String({ format: 'uuid' }),
  vm_id: Type.String(),
  port: Port,
  public: Type.Boolean(),
  url: Type.String({ description: '`https://<port>-<sandbox id>.<preview domain>/`' }),
  created_at: Type.String({ format: 'date-time', description: 'RFC 3339.' }),
  updated_at: Type.Optional(UpdatedAt),
});
export type EndpointRecord = Static<typeof EndpointRecord>;

export const EndpointList = Type.Object({ endpoints: Type.Array(EndpointRecord), ...nextPage });

export const EndpointDeleteResponse = Type.Object({
  id: Type.String({ format: 'uuid' }),
  deleted: Type.Literal(true),
});

export const PreviewLinkRequest = Type.Object({
  port: Port,
  expires_in_s: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: BOUNDS.previewLinkSeconds,
      description:
        'The token expires after this many seconds. Without it the token is valid while the endpoint exists.',
    }),
  ),
});

export const PreviewLink = Type.Object({
  endpoint_id: Type.String({ format: 'uuid' }),
  url: Type.String(),
  token: Type.String({
    description: 'For the header `x-service-preview-token`. Opens this endpoint and nothing else.',
    writeOnly: true,
  }),
  signed_url: Type.String({
    description:
      'The URL with the token, for a browser: it gets a cookie for this host and is redirected to `url`.',
  }),
  expires_at: Type.Union([Type.String({ format: 'date-time' }), Type.Null()], {
    description: 'Null for never.',
  }),
});
export type PreviewLink = Static<typeof PreviewLink>;

/** Header in which clients send a preview token, an API key or the sandbox's access token to a private endpoint. */
export const PREVIEW_TOKEN_HEADER = 'x-service-preview-token';
/** The same header under the name that clients of the compatibility facade know. The other takes precedence. */
export const COMPAT_PREVIEW_TOKEN_HEADER = 'x-daytona-preview-token';
/** Query parameter of `signed_url`. */
export const PREVIEW_TOKEN_PARAMETER = 'rlp_token';

const EndpointParams = Type.Object({
  ...SandboxParams.properties,
  endpoint_id: Type.String({ description: 'Id of the endpoint.' }),
});

const unknownSandbox =
  'The id of the sandbox is unknown, malformed, of another project or of a deleted sandbox.';
const unknownEndpoint = `${unknownSandbox} Or: the sandbox has no such endpoint.`;
const notConfigured = 'The region has no preview domain.';

export const endpointOperations = {
  createEndpoint: {
    method: 'POST',
    path: '/vms/:id/endpoints',
    tag: 'Endpoints',
    summary: 'Expose a port of a sandbox at a URL',
    description:
      'Private by default: requests to the URL need a credential. The endpoint remains while the sandbox exists, ' +
      'also while it is stopped or paused. Forks do not inherit it.',
    security: 'workload',
    params: SandboxParams,
    body: EndpointCreateRequest,
    idempotent: true,
    success: { status: 200, response: { description: 'Exposed.', schema: EndpointRecord } },
    codes: ['already_exposed', 'limit_reached'],
    errors: {
      400: `The port is not valid, or the sandbox has ${BOUNDS.endpointsPerSandbox} endpoints.`,
      404: unknownSandbox,
      409: 'The port is already exposed.',
      503: notConfigured,
    },
  },
  listEndpoints: {
    method: 'GET',
    path: '/vms/:id/endpoints',
    tag: 'Endpoints',
    summary: 'List the endpoints of a sandbox, by port',
    security: 'workload',
    params: SandboxParams,
    query: OptionalPageQuery,
    items: 'endpoints',
    success: { status: 200, response: { description: 'One page, or all of them.', schema: EndpointList } },
    errors: { 404: unknownSandbox, 503: notConfigured },
  },
  updateEndpoint: {
    method: 'PATCH',
    path: '/vms/:id/endpoints/:endpoint_id',
    tag: 'Endpoints',
    summary: 'Make an endpoint public or private',
    description:
      'Takes effect within a second. Connections without a credential end when it becomes private.',
    security: 'workload',
    params: EndpointParams,
    body: EndpointUpdateRequest,
    success: { status: 200, response: { description: 'Changed.', schema: EndpointRecord } },
    errors: { 400: 'A field is not valid.', 404: unknownEndpoint, 503: notConfigured },
  },
  deleteEndpoint: {
    method: 'DELETE',
    path: '/vms/:id/endpoints/:endpoint_id',
    tag: 'Endpoints',
    summary: 'Remove an endpoint',
    description:
      'Its tokens are invalid from now on, also if the port is exposed again. Open connections end within a second.',
    security: 'workload',
    params: EndpointParams,
    success: { status: 200, response: { description: 'Removed.', schema: EndpointDeleteResponse } },
    errors: { 404: unknownEndpoint },
  },
  createPreviewLink: {
    method: 'POST',
    path: '/vms/:id/preview-links',
    tag: 'Endpoints',
    summary: 'Get the URL of a port, and a token that opens it',
    description:
      'Exposes the port as a private endpoint if it is not exposed; an existing endpoint keeps its visibility. Without ' +
      '`expires_in_s`, repeated calls return the same URL and token.',
    security: 'workload',
    params: SandboxParams,
    body: PreviewLinkRequest,
    success: { status: 200, response: { description: 'The link.', schema: PreviewLink } },
    codes: ['limit_reached', 'endpoint_not_found'],
    errors: {
      400: `A field is not valid, or the sandbox has ${BOUNDS.endpointsPerSandbox} endpoints.`,
      404: unknownSandbox,
      503: 'The region has no preview domain, or encryption is temporarily unavailable.',
    },
  },
} as const satisfies Record<string, Operation>;

export const endpointResource = {
  tags: { Endpoints: 'Ports of sandboxes that are reachable at a URL.' },
  operations: endpointOperations,
  schemas: {
    EndpointCreate: EndpointCreateRequest,
    EndpointUpdate: EndpointUpdateRequest,
    Endpoint: EndpointRecord,
    EndpointList,
    PreviewLinkCreate: PreviewLinkRequest,
    PreviewLink,
  },
} as const satisfies ApiResource;
