import {
  conflict,
  parseSandboxId,
  quote,
  sandboxNotFound,
  tokenDigest,
  tokenKind,
  unauthorized,
  type SandboxId,
  type SandboxStatus,
} from '@releap/contract';
import { queryOne, statement, type Database } from '@releap/database';
import type { Authenticator } from '../../platform/auth/authenticator.ts';
import type { ResolvedTarget, TargetResolver } from './target-resolver.ts';

export interface Located {
  id: string;
  project_id: string;
  status: SandboxStatus;
  runner_id: string | null;
  data_url: string | null;
}

export const COLUMNS = 's.id, s.project_id, s.status, s.runner_id, r.data_url';
const BY_PROJECT = statement<Located>(
  'gateway-sandbox-by-project',
  `select ${COLUMNS} from sandboxes s left join runners r on r.id = s.runner_id
    where s.id = $1 and s.project_id = $2 and s.owner_kind = 'project' and ($3::text is null or s.region = $3)`,
);
const BY_TOKEN = statement<Located>(
  'gateway-sandbox-by-token',
  `select ${COLUMNS} from sandboxes s left join runners r on r.id = s.runner_id
    where s.id = $1 and s.access_token_hash = $2 and s.owner_kind = 'project' and ($3::text is null or s.region = $3)
      and not exists (select 1 from projects p where p.id = s.project_id and p.deleted_at is not null)`,
);

/** A sandbox that a credential opens. */
export interface OpenedSandbox extends Pick<ResolvedTarget, 'credential' | 'endpoint' | 'expiresAt'> {
  row: Located;
}

export interface RunningSandboxOptions {
  database: Database;
  authenticator: Authenticator;
  /** For preview tokens; without it they open nothing. Undefined for one that is not valid. */
  byPreviewToken?: (id: SandboxId, token: string) => Promise<OpenedSandbox | undefined>;
}

/** A kind of target that is a running sandbox: for an API key of its project, or its own access token. */
export function runningSandboxTarget(
  kind: string,
  { database, authenticator, byPreviewToken }: RunningSandboxOptions,
): TargetResolver {
  async function locate(id: SandboxId, shownId: string, token: string): Promise<OpenedSandbox> {
    const { uuid, region } = id;
    const refused = unauthorized(
      'missing or invalid credentials: use an API key of the project or the access token of the sandbox',
    );
    switch (tokenKind(token)) {
      case 'apiKey': {
        // Without the cache: a revoked key must not get a grant.
        const principal = await authenticator.byApiKeyNow(token);
        if (principal === null) throw refused;
        const { keyId, projectId } = principal;
        const row = await queryOne(database.pool, BY_PROJECT, [uuid, projectId, region]);
        if (row === undefined) throw sandboxNotFound(shownId);
        return { row, credential: { type: 'apiKey', keyId, projectId } };
      }
      case 'sandbox': {
        // The same response for a wrong token and an unknown id, so that ids cannot be probed.
        const row = await queryOne(database.pool, BY_TOKEN, [uuid, tokenDigest(token), region]);
        if (row === undefined) throw refused;
        return { row, credential: { type: 'sandbox', projectId: row.project_id } };
      }
      case 'preview': {
        const opened = await byPreviewToken?.(id, token);
        if (opened === undefined) throw refused;
        return opened;
      }
      default:
        throw refused;
    }
  }

  return {
    kind,
    subject: ({ sandbox = '' }) => parseSandboxId(sandbox)?.uuid ?? null,
    async resolve({ sandbox: shownId = '' }, token = '') {
      // The credential is checked first: without a valid one not even a malformed id is reported.
      const { row, ...access } = await locate(parseSandboxId(shownId) ?? NO_SANDBOX, shownId, token);
      if (row.status === 'deleted') throw sandboxNotFound(shownId);
      if (row.status !== 'running' || row.runner_id === null || row.data_url === null) {
        throw conflict(
          `sandbox ${quote(shownId)} is ${row.status}, and must be running`,
          'sandbox_not_running',
        );
      }
      return { sandboxId: row.id, runnerId: row.runner_id, dataUrl: row.data_url, ...access };
    },
  };
}

/** No sandbox has this id. */
const NO_SANDBOX: SandboxId = { uuid: '00000000-0000-0000-0000-000000000000', region: null };
