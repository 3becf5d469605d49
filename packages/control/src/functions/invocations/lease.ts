/** Invocations as leased work (platform/work). Their ends are in store.ts. */
import type { InvocationSource } from '@releap/contract';
import { queryAll, statement, type Queryable } from '@releap/database';
import { SKIP_LOCKED, WorkTable } from '../../platform/work/work-table.ts';
import { RECOUNT } from '../../platform/quotas/quota-refusal.ts';
import type { PayloadHeaders } from './payload-headers.ts';
import { INVOCATION_EVENTS } from './transitions.ts';

/** Without a renewal for this long, another server runs the invocation again. */
export const LEASE_MS = 30_000;
/** Payloads up to this size are read with the lease, in bytes; larger ones shortly before they are sent. */
const SMALL_PAYLOAD_BYTES = 64 * 1024;

export interface WaitingFunction {
  id: string;
  org_id: string;
  region: string;
  max_concurrency: number | null;
  max_instances: number | null;
}

export interface LeasedInvocation {
  id: string;
  queued_at: Date;
  attempt: number;
  source: InvocationSource;
  project_id: string;
  org_id: string;
  function_id: string;
  /** Of the function. */
  name: string;
  region: string;
  /** The current one; null while there is none. */
  version: number | null;
  /** Of this version. */
  timeout_s: number | null;
  content_type: string;
  /** Others of the client. */
  headers: PayloadHeaders | null;
  /** Of the payload, in bytes. */
  size: number;
  /** Null when it is larger than `SMALL_PAYLOAD_BYTES`. */
  body: Buffer | null;
}

/** Identifies one attempt. */
export type Attempt = Pick<LeasedInvocation, 'id' | 'queued_at' | 'attempt'>;
export type ExhaustedInvocation = Attempt & Pick<LeasedInvocation, 'function_id' | 'source'>;

export const INVOCATIONS = new WorkTable<Attempt>({
  name: 'invocations',
  table: 'invocations',
  key: { id: 'uuid', queued_at: 'timestamptz' },
  fence: { attempt: 'integer' },
  attempt: 'attempt',
  claimed: `w.status = 'running'`,
  waiting: `${INVOCATION_EVENTS.sets('w', 'return')}, started_at = null, lease_until = null`,
  backlog: { quotas: ['pending_invocations', 'pending_invocation_bytes'], recount: RECOUNT },
});

/**
 * Functions with waiting invocations, in the order of their ids: one index probe each, whatever their backlogs.
 * $1 after this id, or null, $2 most functions
 */
const WAITING = statement<WaitingFunction>(
  'invocations-waiting',
  `with recursive waiting(id) as (
     (select function_id from invocations
       where status = 'pending' and ($1::uuid is null or function_id > $1) order by function_id limit 1)
     union all
     select (select i.function_id from invocations i
              where i.status = 'pending' and i.function_id > w.id order by i.function_id limit 1)
       from waiting w where w.id is not null
   )
   select f.id, p.org_id, f.region, v.max_concurrency, v.max_instances
     from (select id from waiting where id is not null limit $2) w join functions f on f.id = w.id
     join projects p on p.id = f.project_id
     left join function_versions v on v.function_id = f.id and v.version = f.current_version
    order by f.id`,
);

/** The oldest of each function. $1 lease in milliseconds, $2 functions, $3 most of each, $4 largest payload that is read */
const LEASE = INVOCATIONS.claiming<LeasedInvocation>('lease', {
  pick: `select p.id, p.queued_at
       from unnest($2::uuid[], $3::integer[]) as f(function_id, most)
      cross join lateral (
        select w.id, w.queued_at from invocations w
         where w.function_id = f.function_id and w.status = 'pending'
         order by w.queued_at limit f.most ${SKIP_LOCKED}) p`,
  set: `${INVOCATION_EVENTS.sets('w', 'lease')}, started_at = now(), charged_us = null`,
  returning: 'w.id, w.queued_at, w.attempt, w.source, w.project_id, w.function_id',
  rest: `
   select l.*, p.org_id, f.name, f.region, v.version, v.timeout_s, coalesce(b.content_type, '') as content_type, b.headers,
          coalesce(octet_length(b.body), 0) as size,
          case when coalesce(octet_length(b.body), 0) <= $4 then coalesce(b.body, ''::bytea) end as body
     from changed l join functions f on f.id = l.function_id join projects p on p.id = f.project_id
     left join function_versions v on v.function_id = f.id and v.version = f.current_version
     left join invocation_payloads b on b.invocation_id = l.id
    order by l.queued_at`,
});

/** $1 id */
const BODY = statement<{ body: Buffer }>(
  'invocation-body',
  'select body from invocation_payloads where invocation_id = $1',
);

/** Have had all of their attempts. $1 attempts, $2 most */
const EXHAUSTED = statement<ExhaustedInvocation>(
  'invocations-exhausted',
  `select id, queued_at, attempt, function_id, source from invocations w
    where ${INVOCATIONS.expired('w')} and attempt >= $1 limit $2`,
);

export async function waitingFunctions(
  on: Queryable,
  after: string | null,
  most: number,
): Promise<WaitingFunction[]> {
  return await queryAll(on, WAITING, [after, most]);
}

/** Leases the oldest waiting invocations of these functions, oldest first. */
export async function lease(
  on: Queryable,
  wanted: ReadonlyMap<string, number>,
  leaseMs = LEASE_MS,
): Promise<LeasedInvocation[]> {
  if (wanted.size === 0) return [];
  return await queryAll(on, LEASE, [leaseMs, [...wanted.keys()], [...wanted.values()], SMALL_PAYLOAD_BYTES]);
}

/** Undefined when the invocation has ended. */
export async function readBody(on: Queryable, id: string): Promise<Buffer | undefined> {
  return (await queryAll(on, BODY, [id]))[0]?.body;
}

/** Expired invocations that have had all of their attempts. */
export async function exhausted(
  on: Queryable,
  attemptsMax: number,
  most: number,
): Promise<ExhaustedInvocation[]> {
  return await queryAll(on, EXHAUSTED, [attemptsMax, most]);
}
