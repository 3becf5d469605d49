/** Operations on a project's resources, which both planes have: below `/`, and for members below `/projects/:id`. */
import type { Operation } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Answer, Call } from '../../platform/http/plane.ts';
import type { Planes } from '../../platform/http/planes.ts';
import { scopeOfKey, scopeOfMember, type ProjectScope } from './project-scope.ts';

export interface ProjectCall<O extends Operation>
  extends Pick<Call<O>, 'query' | 'body' | 'ids' | 'abortSignal'> {
  project: ProjectScope;
  /** The resource that the path names (`:id_or_name`, `:name` or `:host`); empty for a list or a create. */
  ref: string;
}

/**
 * Registers one handler for an operation of API keys and for that of members which mirrors it (`ofProject` in the contract): the same
 * query, body and answer.
 */
export type ProjectRoute = <
  Own extends Operation & { security: 'workload' },
  Mirror extends Operation & { security: 'management'; success: Own['success'] },
>(
  own: Own,
  mirror: Mirror,
  handler: (call: ProjectCall<Own>) => Promise<Answer<Own>>,
) => void;

export function projectRoute({ workload, management }: Planes, database: Database): ProjectRoute {
  return (own, mirror, handler) => {
    workload.operation(own, (call) => handler(of(call, scopeOfKey(call.principal))));
    management.operation(mirror, (async (call: Call<typeof mirror>) => {
      const { id } = call.params as { id: string };
      const project = await scopeOfMember(database, call.caller, id);
      return await handler(of(call as never, project));
    }) as never);
  };
}

function of<O extends Operation>(call: Call<O>, project: ProjectScope): ProjectCall<O> {
  const { params, query, body, ids, abortSignal } = call;
  const named = (params ?? {}) as { id_or_name?: string; name?: string; host?: string };
  const ref = named.id_or_name ?? named.name ?? named.host ?? '';
  return { project, ref, query, body, ids, abortSignal };
}
