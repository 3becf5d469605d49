/** Authorization of the management plane: the only place that looks up memberships. */
import { forbidden, isUuid, notFound, quote, type ApiError, type Role } from '@releap/contract';
import { queryAll, queryOne, statement, type Queryable, type Statement } from '@releap/database';
import type { Caller } from '../../platform/auth/caller.ts';

export interface OrgAccess {
  id: string;
  name: string;
  personal: boolean;
  /** The caller's. */
  role: Role;
}

export interface ProjectAccess {
  id: string;
  orgId: string;
  name: string;
  /** The project's name, else its organization's. */
  defaultRegion: string | null;
  /** The caller's, in the organization. */
  role: Role;
}

/**
 * `lock`: inside a transaction, blocks other changes of this organization (or project) until the commit. Rows that only
 * refer to it can still be written.
 */
export interface AccessOptions {
  lock?: boolean;
}

const ORG_READ = statement<OrgAccess>(
  'access-org',
  `select o.id, o.name, o.personal_of is not null as personal, m.role
     from organizations o join members m on m.org_id = o.id and m.user_id = $2
    where o.id = $1 and o.deleted_at is null`,
);
/** $1 organization */
const ORG_EXISTS = statement(
  'access-org-exists',
  'select 1 from organizations where id = $1 and deleted_at is null',
);
const ORG_LOCK = statement('access-org-lock', 'select 1 from organizations where id = $1 for no key update');

const PROJECT_READ = statement<ProjectAccess>(
  'access-project',
  `select p.id, p.org_id as "orgId", p.name, coalesce(p.default_region, o.default_region) as "defaultRegion", m.role
     from projects p join organizations o on o.id = p.org_id join members m on m.org_id = o.id and m.user_id = $2
    where p.id = $1 and p.deleted_at is null and o.deleted_at is null`,
);
const PROJECT_LOCK = statement(
  'access-project-lock',
  'select 1 from projects where id = $1 for no key update',
);

/** Reads; with `lock`, locks and reads again, because the rows may have changed during the wait for the lock. */
async function look<Row extends OrgAccess | ProjectAccess>(
  on: Queryable,
  ids: [string, string],
  read: Statement<Row>,
  lock: Statement<object> | null,
): Promise<Row | undefined> {
  if (!isUuid(ids[0])) return undefined;
  const found = await queryOne(on, read, ids);
  if (found === undefined || lock === null) return found;
  await queryAll(on, lock, [ids[0]]);
  return queryOne(on, read, ids);
}

/**
 * The organization, if the caller is a member of it.
 * @param on the pool, or the connection of a transaction
 * @param orgId as the caller wrote it
 * @throws 404 alike for what does not exist, is malformed, or is not the caller's; 403 for a member where `role` is owner
 */
export async function requireOrg(
  on: Queryable,
  caller: Pick<Caller, 'userId'>,
  orgId: string,
  role: Role = 'member',
  { lock = false }: AccessOptions = {},
): Promise<OrgAccess> {
  const org = await look(on, [orgId, caller.userId], ORG_READ, lock ? ORG_LOCK : null);
  if (org === undefined) throw orgNotFound(orgId);
  if (role === 'owner' && org.role !== 'owner') throw ownersOnly(org);
  return org;
}

/**
 * The project, if the caller is a member of its organization. Any member may do anything in it.
 * @throws 404 alike for what does not exist, is malformed, or is not the caller's
 */
export async function requireProject(
  on: Queryable,
  caller: Pick<Caller, 'userId'>,
  projectId: string,
  { lock = false }: AccessOptions = {},
): Promise<ProjectAccess> {
  const project = await look(on, [projectId, caller.userId], PROJECT_READ, lock ? PROJECT_LOCK : null);
  if (project === undefined) throw projectNotFound(projectId);
  return project;
}

/**
 * Counts and inserts of one project that its bounds limit wait here for each other until the end of the transaction. Rows that only
 * refer to the project can still be written.
 */
export async function lockProject(on: Queryable, projectId: string): Promise<void> {
  await queryAll(on, PROJECT_LOCK, [projectId]);
}

/** @returns the id of an organization for the operator, who is no member. @throws 404 */
export async function requireOrgOfOperator(on: Queryable, orgId: string): Promise<string> {
  if (!isUuid(orgId) || (await queryOne(on, ORG_EXISTS, [orgId])) === undefined) throw orgNotFound(orgId);
  return orgId;
}

function orgNotFound(id: string): ApiError {
  return notFound(`organization ${quote(id)} not found`, 'organization_not_found');
}

function projectNotFound(id: string): ApiError {
  return notFound(`project ${quote(id)} not found`, 'project_not_found');
}

function ownersOnly(org: OrgAccess): ApiError {
  return forbidden(
    `only an owner of organization ${quote(org.name)} may do this, and you are a member`,
    'owner_required',
  );
}
