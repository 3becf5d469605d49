/** Writes invocations that no client waits for, with their payloads: all of a call in one statement, or none. */
import { functionNotFound, notFound, quote } from '@releap/contract';
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import { quotaRefusal, type Exceeded } from '../../platform/quotas/quota-refusal.ts';
import { INVOCATIONS } from './lease.ts';
import type { PayloadHeaders } from './payload-headers.ts';

export interface Payload {
  /** UUID of its invocation. */
  id: string;
  contentType: string;
  /** Others that the handler gets; see payload-headers.ts. */
  headers?: PayloadHeaders;
  body: Buffer;
}

export interface EnqueueRequest {
  projectId: string;
  /** Name of the function, from the client. */
  name: string;
  source: 'spawn' | 'map';
  payloads: readonly Payload[];
}

/**
 * A request that is repeated under its `Idempotency-Key` has the ids of its first try, which may have ended meanwhile: no
 * payload of an ended one is left. Nothing is written that the organization has no quota for. Times are whole milliseconds, as JavaScript reads them back. $1 project, $2 name, $3 source, $4 ids, $5 content types, $6 bodies, $7 headers
 */
const ENQUEUE = statement<{ id: string; exceeded: Exceeded | null }>(
  'invocations-enqueue',
  `with called as (
     select f.id, f.project_id, p.org_id from functions f join projects p on p.id = f.project_id
      where f.project_id = $1 and f.name = $2 and f.current_version is not null
   ), payloads as (
     select * from unnest($4::uuid[], $5::text[], $6::bytea[], $7::jsonb[]) as p(id, content_type, body, headers)
   ), admitted as materialized (
     select c.*, ${INVOCATIONS.refusal('c.org_id', 'a.count', 'a.bytes')} as exceeded
       from called c, (select count(*), sum(octet_length(body)) as bytes from payloads) a
   ), given as (
     select p.*, c.id as function_id, c.project_id, c.org_id from admitted c, payloads p where c.exceeded is null
   ), bodies as (
     insert into invocation_payloads (invocation_id, content_type, body, headers, org_id)
     select id, content_type, body, headers, org_id from given g where not exists (select 1 from invocations i where i.id = g.id)
     on conflict do nothing
     returning invocation_id
   ), stored as (
     insert into invocations (id, queued_at, project_id, function_id, source, status)
     select g.id, date_trunc('milliseconds', now()), g.project_id, g.function_id, $3, 'pending'
       from given g join bodies b on b.invocation_id = g.id
   )
   select id, exceeded from admitted`,
);
/** $1 project, $2 name */
const FUNCTION = statement<{ current_version: number | null }>(
  'invocations-function',
  'select current_version from functions where project_id = $1 and name = $2',
);

/** @throws 404 for a function that is unknown, or has no version yet, 429 while too much waits */
export async function enqueue(
  on: Queryable,
  { projectId, name, source, payloads }: EnqueueRequest,
): Promise<void> {
  const called = await queryAll(on, ENQUEUE, [
    projectId,
    name,
    source,
    payloads.map(({ id }) => id),
    payloads.map(({ contentType }) => contentType),
    payloads.map(({ body }) => body),
    payloads.map(({ headers }) => (headers === undefined ? null : JSON.stringify(headers))),
  ]);
  const exceeded = called[0]?.exceeded ?? null;
  if (exceeded !== null) throw quotaRefusal(exceeded);
  if (called.length > 0) return;
  if ((await queryOne(on, FUNCTION, [projectId, name])) === undefined) throw functionNotFound(name);
  throw notFound(
    `function ${quote(name)} has no current version: its image is not built yet, or failed`,
    'function_version_not_found',
  );
}
