import type { Authenticator } from '../../platform/auth/authenticator.ts';
import type { Billing } from '../../tenancy/billing/billing.ts';
import type { Database } from '@releap/database';
import type { DispatchTokens } from '../versions/dispatch-token.ts';
import { timingSafeEqual } from 'node:crypto';
import {
  isUuid,
  notFound,
  quote,
  tokenDigest,
  tokenKind,
  unauthorized,
  type GatewayFunction,
} from '@releap/contract';
import { queryOne, statement } from '@releap/database';
import type { GrantedCredential, TargetResolver } from '../../edge/gateways/target-resolver.ts';

type Row = Omit<GatewayFunction, 'version_id' | 'version' | 'dispatched'> & {
  org_id: string;
  public: boolean;
  token_hash: Buffer | null;
  latest_version: number;
  /** Null while no version can serve. */
  version_id: string | null;
  version: number | null;
};

/** $1 project, $2 name, $3 longest window: versions of before the limit may have more */
const FIND = statement<Row>(
  'gateway-function',
  `select f.id, f.project_id, p.org_id, f.name, f.public, f.token_hash, f.revision::integer as revision, f.latest_version,
          v.id as version_id, v.version, v.port, v.timeout_s,
          least(v.scaledown_window_s, $3) as scaledown_window_s, v.max_concurrency, v.max_instances
     from functions f join projects p on p.id = f.project_id and p.deleted_at is null
     left join function_versions v on v.function_id = f.id and v.version = f.current_version and v.root is not null
    where f.project_id = $1 and f.name = $2`,
);

/**
 * A function by its name: for an API key of its project or a server of the control plane, or, if the target names the
 * project, at its public endpoint. There an unknown function and one that is not public get the same answer.
 */
export function functionTarget({
  database,
  authenticator,
  billing,
  dispatchTokens,
  limits,
}: {
  authenticator: Authenticator;
  billing: Billing;
  database: Database;
  dispatchTokens: DispatchTokens;
  limits: { functionWindowMaxS: number };
}): TargetResolver {
  async function callerOf(token: string): Promise<GrantedCredential | undefined> {
    if (tokenKind(token) === 'apiKey') {
      // Without the cache: a revoked key must not get a grant.
      const principal = await authenticator.byApiKeyNow(token);
      return principal === null
        ? undefined
        : { type: 'apiKey', keyId: principal.keyId, projectId: principal.projectId };
    }
    const dispatch = await dispatchTokens.verify(token);
    return dispatch && { type: 'service', projectId: dispatch.projectId };
  }

  // No name is a text that PostgreSQL could not take, such as one with NUL.
  const find = async (projectId: string, name: string): Promise<Row | undefined> =>
    /^[a-z0-9-]+$/.test(name)
      ? queryOne(database.pool, FIND, [projectId, name, limits.functionWindowMaxS])
      : undefined;

  /** Of the caller of a public endpoint. */
  function publicCredential(row: Row, token: string): GrantedCredential {
    const { project_id: projectId, token_hash: hash } = row;
    if (hash === null) return { type: 'public', projectId };
    if (tokenKind(token) !== 'function' || !timingSafeEqual(tokenDigest(token), hash))
      throw unauthorized('this function requires its token: send Authorization: Bearer <function token>');
    return { type: 'function', projectId };
  }

  async function locate(
    name: string,
    project: string | undefined,
    token: string,
  ): Promise<{ row: Row; credential: GrantedCredential }> {
    const unknown = notFound(`function ${quote(name)} not found`, 'function_not_found');
    if (project !== undefined) {
      const row = isUuid(project) ? await find(project, name) : undefined;
      if (row?.public !== true) throw unknown;
      return { row, credential: publicCredential(row, token) };
    }
    const credential = await callerOf(token);
    if (credential === undefined) throw unauthorized();
    const row = await find(credential.projectId, name);
    if (row === undefined) throw unknown;
    return { row, credential };
  }

  return {
    kind: 'function',
    // Its id is not known yet.
    subject: () => null,
    async resolve({ function: name = '', project }, token = '', request) {
      const { row, credential } = await locate(name, project, token);
      // A change since the lookup is found when revisions are compared.
      request.watch(row.id);
      const { org_id: orgId, public: _public, token_hash: _hash, latest_version: latest, ...found } = row;
      if (found.version_id === null || found.version === null)
        throw notFound(
          `function ${quote(name)} has no current version: the image of version ${latest} is not built (see GET /fns/${name}/versions)`,
          'function_version_not_found',
        );
      await billing.requireCredits(orgId);
      const { version_id, version } = found;
      const dispatched = credential.type === 'service';
      return {
        function: { ...found, org_id: orgId, version_id, version, ...(dispatched ? { dispatched } : {}) },
        credential,
      };
    },
  };
}
