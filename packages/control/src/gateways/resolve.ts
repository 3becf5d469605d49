import {
  conflict,
  internalOperations,
  parseSandboxId,
  quote,
  sandboxNotFound,
  tokenDigest,
  tokenKind,
  unauthorized,
  type SandboxId,
  type SandboxStatus,
} from '@releap/contract';
import { first, statement, type Database } from '@releap/database';
import type { Authenticator } from '../auth/authenticator.ts';
import type { DataTokens } from '../credentials/data-tokens.ts';
import type { Planes } from '../http/planes.ts';

interface Holder {
  id: string;
  status: SandboxStatus;
  runner_id: string | null;
  data_url: string | null;
}

const BY_PROJECT = statement<Holder>(
  'resolve-by-project',
  `select s.id, s.status, s.runner_id, r.data_url from sandboxes s left join runners r on r.id = s.runner_id
    where s.id = $1 and s.project_id = $2 and s.owner_kind = 'project' and ($3::text is null or s.region = $3)`,
);
const BY_TOKEN = statement<Holder>(
  'resolve-by-token',
  `select s.id, s.status, s.runner_id, r.data_url from sandboxes s left join runners r on r.id = s.runner_id
    where s.id = $1 and s.access_token_hash = $2 and ($3::text is null or s.region = $3)
      and not exists (select 1 from projects p where p.id = s.project_id and p.deleted_at is not null)`,
);

/** Where a gateway finds the host of a sandbox. */
export function resolveRoutes(
  { gateway }: Planes,
  {
    database,
    authenticator,
    dataTokens,
  }: { database: Database; authenticator: Authenticator; dataTokens: DataTokens },
): void {
  async function holder({ uuid, region }: SandboxId, shownId: string, token: string): Promise<Holder> {
    const refused = unauthorized(
      'missing or invalid credentials: use an API key of the project or the access token of the sandbox',
    );
    switch (tokenKind(token)) {
      case 'apiKey': {
        // The gateway keeps the answer: two caches one after the other would let a revoked key in for twice as long.
        const principal = await authenticator.byApiKeyNow(token);
        if (principal === null) throw refused;
        const row = await first(database.pool, BY_PROJECT, [uuid, principal.projectId, region]);
        if (row === undefined) throw sandboxNotFound(shownId);
        return row;
      }
      case 'sandbox': {
        // A wrong token and an unknown id are told alike: the token says nothing about other ids.
        const row = await first(database.pool, BY_TOKEN, [uuid, tokenDigest(token), region]);
        if (row === undefined) throw refused;
        return row;
      }
      default:
        throw refused;
    }
  }

  gateway.operation(internalOperations.resolveSandbox, async ({ body: { vm_id, token } }) => {
    // Credentials come first: without good ones not even a malformed id is told.
    const row = await holder(parseSandboxId(vm_id) ?? NOBODY, vm_id, token);
    if (row.status === 'deleted') throw sandboxNotFound(vm_id);
    if (row.status !== 'running' || row.data_url === null || row.runner_id === null) {
      throw conflict(`sandbox ${quote(vm_id)} is ${row.status}, and must be running`);
    }
    const { token: data_token, ttlMs } = await dataTokens.issue(row.runner_id, row.id);
    return {
      vm_id: row.id,
      status: row.status,
      data_url: row.data_url,
      data_token,
      data_token_ttl_ms: ttlMs,
    };
  });
}

/** No sandbox has this id. */
const NOBODY: SandboxId = { uuid: '00000000-0000-0000-0000-000000000000', region: null };
