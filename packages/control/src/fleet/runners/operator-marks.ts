/** What the operator decides about a host, in its row. What follows from it for the host's sandboxes is done above (compute/hosts). */
import type { HostClassesRequest } from '@releap/contract';
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import { RUNNER_EVENTS } from './transitions.ts';

const DRAIN = statement<{ id: string }>(
  'host-drain',
  `update runners set draining_since = coalesce(draining_since, now()), drain_force = drain_force or $2, drain_move = drain_move or $3
    where id = $1 and forgotten_at is null returning id`,
);
const UNDRAIN = statement<{ id: string }>(
  'host-undrain',
  'update runners set draining_since = null, drain_force = false, drain_move = false where id = $1 and forgotten_at is null returning id',
);
/** The new epoch ends a concurrent connection of the host. $1 host */
const FORGET = statement<{ forgotten_at: Date }>(
  'host-forget',
  `update runners set forgotten_at = now(), ready = false, epoch = epoch + 1
    where id = $1 and status = 'lost' and forgotten_at is null returning forgotten_at`,
);
/**
 * Invalidates the connection of a revoked credential: its server closes it. The host is offline from now on, because the
 * end of a connection that is not the newest changes no row. $1 host
 */
const END_CONNECTION = statement(
  'runner-connection-end',
  `update runners r set epoch = epoch + 1, ready = false, ${RUNNER_EVENTS.sets('r', { revoke: 'true' })} where id = $1`,
);

/** No server has a connection of any host: the database was restored. */
const DISCONNECT_ALL = statement(
  'runners-disconnect',
  `update runners r set ready = false, ${RUNNER_EVENTS.sets('r', 'disconnect')} where ${RUNNER_EVENTS.allows('r', 'disconnect')}`,
);

/** Null removes an entry. $1 host, $2 slugs by kind */
const SET_CLASSES = statement<{ id: string }>(
  'host-set-classes',
  `update runners set classes = jsonb_strip_nulls(classes || $2::jsonb) where id = $1 and forgotten_at is null returning id`,
);

const SET_NAME = statement<{ id: string }>(
  'host-set-name',
  'update runners set name = $2 where id = $1 and forgotten_at is null returning id',
);

/** It wins over the one that the host declares; null: that one applies. @returns whether the host exists */
export async function setName(on: Queryable, id: string, name: string | null): Promise<boolean> {
  return (await queryOne(on, SET_NAME, [id, name])) !== undefined;
}

/** They win over those that the host declares. @returns whether the host exists */
export async function setClasses(on: Queryable, id: string, slugs: HostClassesRequest): Promise<boolean> {
  return (await queryOne(on, SET_CLASSES, [id, JSON.stringify(slugs)])) !== undefined;
}

/** Nothing new is placed there. @returns whether the host exists */
export async function markDraining(
  on: Queryable,
  id: string,
  { force, move }: { force: boolean; move: boolean },
): Promise<boolean> {
  return (await queryOne(on, DRAIN, [id, force, move])) !== undefined;
}

/** @returns whether the host exists */
export async function unmarkDraining(on: Queryable, id: string): Promise<boolean> {
  return (await queryOne(on, UNDRAIN, [id])) !== undefined;
}

/** It can no longer connect. @returns when; undefined: it is not lost, does not exist, or was forgotten before */
export async function markForgotten(on: Queryable, id: string): Promise<Date | undefined> {
  return (await queryOne(on, FORGET, [id]))?.forgotten_at;
}

/** Nothing is placed on a host before it has connected again. No server may run. */
export async function disconnectHosts(on: Queryable): Promise<void> {
  await queryAll(on, DISCONNECT_ALL, []);
}

/** Its credential was revoked. */
export async function endConnection(on: Queryable, id: string): Promise<void> {
  await queryAll(on, END_CONNECTION, [id]);
}
