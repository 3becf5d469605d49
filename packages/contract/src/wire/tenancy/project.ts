/** Projects and their API keys, and the operations on what is in a project as the management plane has them. */
import { Type, type Static, type TSchema } from 'typebox';
import { BAD_NAME, Named, UNKNOWN_ORGANIZATION } from '../platform/fields.ts';
import type { Operation } from '../platform/operation.ts';
import { nextPage, OptionalPageQuery, pageFields } from '../platform/paging.ts';
import { Deleted, OrgParams } from './organization.ts';

const Uuid = Type.String({ format: 'uuid' });
const Stamp = Type.String({ format: 'date-time', description: 'RFC 3339.' });

export const ProjectParams = Type.Object({ id: Type.String({ description: 'Id of the project.' }) });

export const ProjectCreate = Named;
export const Project = Type.Object({ id: Uuid, org_id: Uuid, name: Type.String() });
export type Project = Static<typeof Project>;
export const ProjectList = Type.Object({
  projects: Type.Array(Type.Object({ id: Uuid, name: Type.String() })),
  ...nextPage,
});
export type ProjectList = Static<typeof ProjectList>;

export const ApiKeyCreate = Type.Object({ name: Type.Optional(Type.String({ default: 'default' })) });
export type ApiKeyCreate = Static<typeof ApiKeyCreate>;
const keyFields = {
  id: Uuid,
  name: Type.String(),
  project_id: Uuid,
  key_prefix: Type.String({ description: 'The first characters of the token.' }),
};
export const ApiKeyMinted = Type.Object({
  ...keyFields,
  token: Type.String({ description: 'The key itself. Shown only here, and never stored.' }),
});
export type ApiKeyMinted = Static<typeof ApiKeyMinted>;
export const ApiKey = Type.Object({
  ...keyFields,
  created_at: Stamp,
  revoked_at: Type.Union([Stamp, Type.Null()]),
  last_used_at: Type.Union([Stamp, Type.Null()], { description: 'Up to half a minute late.' }),
});
export type ApiKey = Static<typeof ApiKey>;
export const ApiKeyList = Type.Object({ api_keys: Type.Array(ApiKey), ...nextPage });
export type ApiKeyList = Static<typeof ApiKeyList>;
export const ApiKeyListQuery = Type.Object({
  ...pageFields,
  include_revoked: Type.Optional(Type.Boolean({ default: false })),
});
export const ApiKeyParams = Type.Object({ id: Type.String() });
export const ApiKeyRevoked = Type.Object({ revoked: Uuid });

const unknownProject = 'There is no such project, or the caller is not a member of its organization.';

/** A workload operation as the management plane mirrors it below `/projects/:id`, for any member of the project's organization. */
export function ofProject<
  O extends { method: string; path: string; errors: Record<number, string>; params?: TSchema },
  P extends TSchema,
>(operation: O, params: P) {
  const { errors } = operation;
  const missing = 404 in errors ? `${unknownProject} Or: ${errors[404]}` : unknownProject;
  return {
    ...(operation as Omit<O, 'path' | 'security' | 'params' | 'errors' | 'description'>),
    path: `/projects/:id${operation.path}`,
    description: `As \`${operation.method} ${operation.path}\` with an API key.${operation.method === 'GET' ? '' : ' The audit log tells of it.'}`,
    security: 'management' as const,
    params,
    errors: { ...errors, 404: missing },
  };
}

export const projectOperations = {
  createProject: {
    method: 'POST',
    path: '/orgs/:id/projects',
    tag: 'Projects',
    summary: 'Make a project',
    security: 'management',
    params: OrgParams,
    body: ProjectCreate,
    idempotent: true,
    success: { status: 200, response: { description: 'Made.', schema: Project } },
    codes: ['name_exists', 'limit_reached'],
    errors: {
      400: BAD_NAME,
      404: UNKNOWN_ORGANIZATION,
      409: 'The organization has a project of this name, or the most projects allowed.',
    },
  },
  listProjects: {
    method: 'GET',
    path: '/orgs/:id/projects',
    tag: 'Projects',
    summary: 'List the projects of an organization',
    security: 'management',
    params: OrgParams,
    query: OptionalPageQuery,
    items: 'projects',
    success: {
      status: 200,
      response: { description: 'One page, or all of them; oldest first.', schema: ProjectList },
    },
    errors: { 404: UNKNOWN_ORGANIZATION },
  },
  deleteProject: {
    method: 'DELETE',
    path: '/projects/:id',
    tag: 'Projects',
    summary: 'Delete a project and everything in it',
    description:
      'It is no longer visible at once, its name is free and its keys stop working; its sandboxes, images and other contents are removed in the background.',
    security: 'management',
    params: ProjectParams,
    success: { status: 200, response: { description: 'Deleted.', schema: Deleted } },
    errors: { 404: unknownProject },
  },
  createApiKey: {
    method: 'POST',
    path: '/projects/:id/api-keys',
    tag: 'Projects',
    summary: 'Mint an API key',
    description: 'The token is shown once. A new key named `default` revokes the previous one.',
    security: 'management',
    params: ProjectParams,
    body: ApiKeyCreate,
    idempotent: true,
    success: { status: 200, response: { description: 'Minted.', schema: ApiKeyMinted } },
    codes: ['limit_reached'],
    errors: { 400: BAD_NAME, 404: unknownProject, 409: 'The project has the most keys allowed.' },
  },
  listApiKeys: {
    method: 'GET',
    path: '/projects/:id/api-keys',
    tag: 'Projects',
    summary: 'List API keys, newest first',
    security: 'management',
    params: ProjectParams,
    query: ApiKeyListQuery,
    items: 'api_keys',
    success: { status: 200, response: { description: 'One page, or all of them.', schema: ApiKeyList } },
    errors: { 404: unknownProject },
  },
  revokeApiKey: {
    method: 'DELETE',
    path: '/api-keys/:id',
    tag: 'Projects',
    summary: 'Revoke an API key',
    description: 'It stops working on all servers within a second. Idempotent.',
    security: 'management',
    params: ApiKeyParams,
    success: { status: 200, response: { description: 'Revoked.', schema: ApiKeyRevoked } },
    errors: { 404: "There is no such key, or it is not of the caller's organizations." },
  },
} as const satisfies Record<string, Operation>;
