/**
 * Leases of invocations. A server leases waiting ones with the next attempt number, which fences their end: another server
 * leases them again once the lease has expired, and from then on the first one can neither renew nor end them.
 */
import { queryAll, statement, type Queryable } from '@releap/database';
import type { PayloadHeaders } from './payload-headers.ts';
import type { InvocationSource } from './store.ts';

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

/** The oldest of each function. $1 functions, $2 most of each, $3 lease in milliseconds, $4 largest payload that is read */
const LEASE = statement<LeasedInvocation>(
  'invocations-lease',
  `with picked as materialized (
     select p.id, p.queued_at
       from unnest($1::uuid[], $2::integer[]) as w(function_id, most)
      cross join lateral (
        select i.id, i.queued_at from invocations i
         where i.function_id = w.function_id and i.status = 'pending'
         order by i.queued_at limit w.most for update skip locked) p
   ), leased as (
     update invocations i
        set status = 'running', attempt = i.attempt + 1, started_at = now(), charged_us = null,
            lease_until = now() + $3 * interval '1 millisecond'
       from picked p where i.id = p.id and i.queued_at = p.queued_at and i.status = 'pending'
     returning i.id, i.queued_at, i.attempt, i.source, i.project_id, i.function_id
   )
   select l.*, p.org_id, f.name, f.region, v.version, v.timeout_s, coalesce(b.content_type, '') as content_type, b.headers,
          coalesce(octet_length(b.body), 0) as size,
          case when coalesce(octet_length(b.body), 0) <= $4 then coalesce(b.body, ''::bytea) end as body
     from leased l join functions f on f.id = l.function_id join projects p on p.id = f.project_id
     left join function_versions v on v.function_id = f.id and v.version = f.current_version
     left join invocation_payloads b on b.invocation_id = l.id
    order by l.queued_at`,
);

/** $1 id */
const BODY = statement<{ body: Buffer }>(
  'invocation-body',
  'select body from invocation_payloads where invocation_id = $1',
);

/**
 * Locks those of these attempts that are still owned. Whatever changes several invocations locks them in the order of their ids, or
 * skips locked ones: two statements that waited for each other's rows would be a deadlock. $1 to $3 attempts
 */
const OWNED = `owned as materialized (
     select i.id, i.queued_at from invocations i
       join unnest($1::uuid[], $2::timestamptz[], $3::integer[]) as a(id, queued_at, attempt)
         on i.id = a.id and i.queued_at = a.queued_at and i.attempt = a.attempt
      where i.status = 'running' order by i.id for update of i
   )`;

/** $1 to $3 attempts, $4 lease in milliseconds */
const RENEW = statement<{ id: string }>(
  'invocations-renew',
  `with ${OWNED}
   update invocations i set lease_until = now() + $4 * interval '1 millisecond' from owned o
    where i.id = o.id and i.queued_at = o.queued_at returning i.id`,
);

/** Of invocations that no gateway has received, so that the attempt does not count. $1 to $3 attempts */
const RETURN = statement(
  'invocations-return',
  `with ${OWNED}
   update invocations i set status = 'pending', attempt = i.attempt - 1, started_at = null, lease_until = null from owned o
    where i.id = o.id and i.queued_at = o.queued_at`,
);

/** Of invocations that may have run. One that another statement changes now is looked at again the next time. $1 attempts */
const EXPIRED = statement<{ id: string }>(
  'invocations-expired',
  `with expired as materialized (
     select id, queued_at from invocations
      where status = 'running' and lease_until < now() and attempt < $1 for update skip locked
   )
   update invocations i set status = 'pending', lease_until = null from expired e
    where i.id = e.id and i.queued_at = e.queued_at returning i.id`,
);

const EXHAUSTED = statement<Attempt & { function_id: string; source: InvocationSource }>(
  'invocations-exhausted',
  `select id, queued_at, attempt, function_id, source from invocations
    where status = 'running' and lease_until < now() and attempt >= $1 limit $2`,
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
  return await queryAll(on, LEASE, [[...wanted.keys()], [...wanted.values()], leaseMs, SMALL_PAYLOAD_BYTES]);
}

/** Undefined when the invocation has ended. */
export async function readBody(on: Queryable, id: string): Promise<Buffer | undefined> {
  return (await queryAll(on, BODY, [id]))[0]?.body;
}

const columns = (attempts: readonly Attempt[]): unknown[] => [
  attempts.map(({ id }) => id),
  attempts.map(({ queued_at }) => queued_at),
  attempts.map(({ attempt }) => attempt),
];

/** @param leaseMs from now on. @returns ids of those that are still owned */
export async function renew(
  on: Queryable,
  attempts: readonly Attempt[],
  leaseMs = LEASE_MS,
): Promise<Set<string>> {
  if (attempts.length === 0) return new Set();
  const rows = await queryAll(on, RENEW, [...columns(attempts), leaseMs]);
  return new Set(rows.map(({ id }) => id));
}

/** Gives back what no gateway has received. */
export async function giveBack(on: Queryable, attempts: readonly Attempt[]): Promise<void> {
  if (attempts.length > 0) await queryAll(on, RETURN, columns(attempts));
}

/** Returns invocations whose lease has expired to the queue. @returns how many */
export async function requeueExpired(on: Queryable, attemptsMax: number): Promise<number> {
  return (await queryAll(on, EXPIRED, [attemptsMax])).length;
}

/** Expired invocations that have had all of their attempts. */
export async function exhausted(
  on: Queryable,
  attemptsMax: number,
  most: number,
): Promise<(Attempt & { function_id: string; source: InvocationSource })[]> {
  return await queryAll(on, EXHAUSTED, [attemptsMax, most]);
}
