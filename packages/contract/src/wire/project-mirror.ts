/** Workload operations as the management plane mirrors them, below `/projects/:id`. */
import type { TSchema } from 'typebox';

const unknownProject = 'There is no such project, or the caller is not a member of its organization.';

/** The same on the management plane, for any member of the project's organization. */
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
