/** The operations of the management plane, and what people mean by the name of an organization or a project. */
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { printable } from '../terminal.ts';
import type { Account } from '../account/session.ts';
import type { Http } from './http.ts';
import type {
  ApiKey,
  ApiKeyMinted,
  AuditEntry,
  CreditsRecord,
  Invitation,
  Member,
  MyInvitation,
  Organization,
  OrgInvitation,
  Project,
  Role,
  User,
} from './management-types.ts';

export function me(http: Http): Promise<User> {
  return http.json('/me');
}

export async function organizations(http: Http): Promise<Organization[]> {
  return (await http.json<{ organizations: Organization[] }>('/orgs')).organizations;
}

export function createOrganization(http: Http, name: string): Promise<Omit<Organization, 'role'>> {
  return http.json('/orgs', { method: 'POST', json: { name } });
}

export function renameOrganization(
  http: Http,
  id: string,
  name: string,
): Promise<{ id: string; name: string }> {
  return http.json(org(id), { method: 'PATCH', json: { name } });
}

export function deleteOrganization(http: Http, id: string): Promise<unknown> {
  return http.json(org(id), { method: 'DELETE' });
}

export async function members(http: Http, orgId: string): Promise<Member[]> {
  return (await http.json<{ members: Member[] }>(`${org(orgId)}/members`)).members;
}

export function removeMember(http: Http, orgId: string, userId: string): Promise<unknown> {
  return http.json(`${org(orgId)}/members/${encodeURIComponent(userId)}`, { method: 'DELETE' });
}

export function auditPage(
  http: Http,
  orgId: string,
  query: { limit: number; cursor?: string },
): Promise<{ entries: AuditEntry[]; next_cursor: string | null }> {
  return http.json(`${org(orgId)}/audit`, { query });
}

export function credits(http: Http, orgId: string, limit: number | undefined): Promise<CreditsRecord> {
  return http.json(`${org(orgId)}/credits`, { query: { limit } });
}

export function invite(http: Http, orgId: string, email: string, role?: Role): Promise<Invitation> {
  return http.json(`${org(orgId)}/invitations`, {
    method: 'POST',
    json: { email, ...(role === undefined ? {} : { role }) },
  });
}

export async function invitationsOf(http: Http, orgId: string): Promise<OrgInvitation[]> {
  return (await http.json<{ invitations: OrgInvitation[] }>(`${org(orgId)}/invitations`)).invitations;
}

export function takeInvitationBack(http: Http, orgId: string, id: string): Promise<unknown> {
  return http.json(`${org(orgId)}/invitations/${encodeURIComponent(id)}`, { method: 'DELETE' });
}

/** Those for the caller's own e-mail address. */
export async function myInvitations(http: Http): Promise<MyInvitation[]> {
  return (await http.json<{ invitations: MyInvitation[] }>('/invitations')).invitations;
}

export function acceptInvitation(http: Http, id: string): Promise<{ org_id: string; role: Role }> {
  return http.json(`/invitations/${encodeURIComponent(id)}/accept`, { method: 'POST' });
}

export async function projectsOf(http: Http, orgId: string): Promise<Pick<Project, 'id' | 'name'>[]> {
  return (await http.json<{ projects: Project[] }>(`${org(orgId)}/projects`)).projects;
}

export function createProject(http: Http, orgId: string, name: string): Promise<Project> {
  return http.json(`${org(orgId)}/projects`, { method: 'POST', json: { name } });
}

export function deleteProject(http: Http, id: string): Promise<unknown> {
  return http.json(`/projects/${encodeURIComponent(id)}`, { method: 'DELETE' });
}

export async function keysOf(http: Http, projectId: string, revoked: boolean): Promise<ApiKey[]> {
  const query = { include_revoked: revoked || undefined };
  const path = `/projects/${encodeURIComponent(projectId)}/api-keys`;
  return (await http.json<{ api_keys: ApiKey[] }>(path, { query })).api_keys;
}

export function createKey(http: Http, projectId: string, name: string | undefined): Promise<ApiKeyMinted> {
  return http.json(`/projects/${encodeURIComponent(projectId)}/api-keys`, {
    method: 'POST',
    json: name === undefined ? {} : { name },
  });
}

export function revokeKey(http: Http, id: string): Promise<{ revoked: string }> {
  return http.json(`/api-keys/${encodeURIComponent(id)}`, { method: 'DELETE' });
}

function org(id: string): string {
  return `/orgs/${encodeURIComponent(id)}`;
}

/**
 * The organization of that id or name; without a text that of the project in use, else the user's own. Names need not
 * be unique: more than one match is an error that lists them.
 */
export async function findOrganization(account: Account, text: string | undefined): Promise<Organization> {
  const all = await organizations(account.http);
  if (text === undefined) {
    const used = account.session.keys?.[account.session.project ?? '']?.org_id;
    const found = all.find(({ id }) => id === used) ?? all.find(({ personal }) => personal);
    if (found === undefined) throw usageError('say which organization, with --org');
    return found;
  }
  return theOnly(all, text, 'organization', 'rlp org ls');
}

/**
 * The project of that id or name, in one organization or in all of the user's; without a text the project in use, else
 * the only one there is.
 */
export async function findProject(
  account: Account,
  text: string | undefined,
  orgText?: string,
): Promise<Project & { org_name: string }> {
  const orgs =
    orgText === undefined ? await organizations(account.http) : [await findOrganization(account, orgText)];
  const all: (Project & { org_name: string })[] = [];
  for (const { id, name } of orgs)
    for (const project of await projectsOf(account.http, id))
      all.push({ id: project.id, name: project.name, org_id: id, org_name: name });
  if (text !== undefined) return theOnly(all, text, 'project', 'rlp project ls');
  const used = all.find(({ id }) => id === account.session.project);
  const [only, ...others] = all;
  if (used !== undefined) return used;
  if (only !== undefined && others.length === 0) return only;
  throw usageError(
    only === undefined
      ? 'there is no project yet: rlp project create makes one'
      : 'say which project, with --project or rlp project use: rlp project ls lists them',
  );
}

/** An id wins over a name. */
function theOnly<T extends { id: string; name: string; org_name?: string }>(
  all: readonly T[],
  text: string,
  what: string,
  list: string,
): T {
  const matches = all.filter(({ id }) => id === text.toLowerCase());
  if (matches.length === 0) matches.push(...all.filter(({ name }) => name === text));
  const [only] = matches;
  if (only === undefined)
    throw new CliError(`no ${what} has the name or id ${JSON.stringify(text)}: ${list} lists them`, {
      exitCode: EXIT.notFound,
      status: 404,
    });
  if (matches.length > 1) {
    const shown = matches
      .slice(0, 5)
      .map((one) => one.id + (one.org_name ? ` (${printable(one.org_name)})` : ''));
    throw usageError(
      `${matches.length} ${what}s have the name ${JSON.stringify(text)}, use an id: ${shown.join(', ')}`,
    );
  }
  return only;
}
