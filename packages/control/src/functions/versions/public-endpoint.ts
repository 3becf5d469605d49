/** `POST /fns/:name/public`: whether a function can be called without an API key. */
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import {
  functionNotFound,
  tokenDigest,
  type FunctionPublic,
  type FunctionPublicUpdate,
} from '@releap/contract';
import { queryOne, statement } from '@releap/database';
import type { IdGenerator } from '../../platform/idempotency/id-generator.ts';

/** A token that is there stays. $1 project, $2 name, $3 enabled, $4 whether a token is required, $5 digest of a new one */
const UPDATE = statement<{ id: string; token_hash: Buffer | null }>(
  'function-public-update',
  `update functions set public = $3, revision = revision + 1,
          token_hash = case when not ($3 and $4) then null when public and token_hash is not null then token_hash else $5 end
    where project_id = $1 and name = $2 returning id, token_hash`,
);

/** @throws 404 */
export async function setPublic(
  { database, events }: { database: Database; events: EventBus },
  projectId: string,
  name: string,
  { enabled, require_token = false }: FunctionPublicUpdate,
  ids: IdGenerator,
): Promise<FunctionPublic> {
  const token = ids.token('function');
  const digest = tokenDigest(token);
  const updated = await queryOne(database.pool, UPDATE, [projectId, name, enabled, require_token, digest]);
  if (updated === undefined) throw functionNotFound(name);
  events.emit('functions-changed', [updated.id]);
  return {
    public: enabled,
    url: `/fn/${projectId}/${name}`,
    requires_token: updated.token_hash !== null,
    token: updated.token_hash?.equals(digest) === true ? token : null,
  };
}
