/** The management plane of the service that tests talk to. */
import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type {
  ApiKey,
  AuditEntry,
  LedgerEntry,
  Organization,
  OrgInvitationList,
  Project,
  Role,
} from '@releap/contract';
import { AUDIENCE, CLIENT, type TestIssuer, type TestUser } from './issuer.ts';
import { readJson, send } from './service-http.ts';
import type { TestService } from './service-state.ts';

export interface TestOrganization extends Omit<Organization, 'role'> {
  members: (TestUser & { role: Role })[];
  invitations: OrgInvitationList['invitations'];
  projects: Project[];
  ledger: LedgerEntry[];
  audit: AuditEntry[];
}

export interface TestManagement {
  issuer: TestIssuer;
  organizations: TestOrganization[];
  keys: (ApiKey & { token: string })[];
}

/** Lets the service take the tokens of that issuer, whose user has an organization of his own. */
export function manage(service: TestService, issuer: TestIssuer): TestManagement {
  const management: TestManagement = { issuer, organizations: [], keys: [] };
  service.management = management;
  addOrganization(management, issuer.user, 'ada', true);
  return management;
}

export function addOrganization(
  management: TestManagement,
  owner: TestUser,
  name: string,
  personal = false,
): TestOrganization {
  const organization: TestOrganization = {
    id: randomUUID(),
    name,
    personal,
    members: [{ ...owner, role: 'owner' }],
    invitations: [],
    projects: [],
    ledger: [],
    audit: [],
  };
  management.organizations.push(organization);
  return organization;
}

export function addProject(organization: TestOrganization, name: string): Project {
  const project = { id: randomUUID(), org_id: organization.id, name };
  organization.projects.push(project);
  return project;
}

/** False when the path is not of this plane. */
export async function managementPath(
  service: TestService,
  request: IncomingMessage,
  response: ServerResponse,
  url: URL,
): Promise<boolean> {
  const [first = '', id = '', what = '', more = ''] = url.pathname.slice(1).split('/');
  if (!['auth', 'me', 'orgs', 'projects', 'invitations', 'api-keys'].includes(first)) return false;
  const { management } = service;
  if (management === undefined) return refused(response, 503, 'this server has no issuer of tokens');
  if (first === 'auth') {
    const scopes = ['openid', 'email', 'offline_access'];
    return done(response, { issuer: management.issuer.url, client_id: CLIENT, audience: AUDIENCE, scopes });
  }
  const user = management.issuer.tokens.get(request.headers.authorization?.replace('Bearer ', '') ?? '');
  if (user === undefined) return refused(response, 401, 'the token is not good');
  const body = request.headers['content-type'] === 'application/json' ? await readJson(request) : {};
  const called: Called = {
    management,
    user,
    method: request.method ?? 'GET',
    id,
    what,
    more,
    body,
    url,
    response,
  };
  switch (first) {
    case 'me':
      return done(response, user);
    case 'orgs':
      return orgPath(called);
    case 'projects':
      return projectPath(called);
    case 'invitations':
      return invitationPath(called);
    default: {
      const key = management.keys.find((one) => one.id === id);
      if (key === undefined) return refused(response, 404, `API key "${id}" not found`);
      key.revoked_at = new Date().toISOString();
      return done(response, { revoked: id });
    }
  }
}

interface Called {
  management: TestManagement;
  user: TestUser;
  method: string;
  id: string;
  what: string;
  more: string;
  body: Record<string, unknown>;
  url: URL;
  response: ServerResponse;
}

function orgPath({ management, user, method, id, what, more, body, url, response }: Called): boolean {
  const roleIn = (one: TestOrganization): Role | undefined =>
    one.members.find((member) => member.id === user.id)?.role;
  if (id === '') {
    if (method === 'POST') {
      const made = addOrganization(management, user, String(body['name']));
      return done(response, { id: made.id, name: made.name, personal: false });
    }
    const organizations = management.organizations
      .filter((one) => roleIn(one) !== undefined)
      .map((one) => ({ id: one.id, name: one.name, personal: one.personal, role: roleIn(one) }));
    return done(response, { organizations });
  }
  const found = management.organizations.find((one) => one.id === id && roleIn(one) !== undefined);
  if (found === undefined) return refused(response, 404, `organization "${id}" not found`);
  const ownersOnly = what === 'audit' || what === 'invitations' || (method !== 'GET' && what !== 'projects');
  if (ownersOnly && roleIn(found) !== 'owner') return refused(response, 403, 'this is for owners');
  switch (`${method} ${what}`) {
    case 'DELETE ':
      if (found.personal) return refused(response, 409, 'a personal organization cannot be deleted');
      management.organizations.splice(management.organizations.indexOf(found), 1);
      return done(response, { deleted: id });
    case 'PATCH ':
      found.name = String(body['name']);
      return done(response, { id, name: found.name });
    case 'GET members':
      return done(response, {
        members: found.members.map(({ id: user_id, ...member }) => ({ user_id, ...member })),
      });
    case 'DELETE members': {
      const left = found.members.filter((one) => one.id !== more);
      if (!left.some((one) => one.role === 'owner'))
        return refused(response, 409, 'the last owner cannot be removed');
      found.members = left;
      return done(response, { removed: more });
    }
    case 'GET projects':
      return done(response, { projects: found.projects.map(({ id, name }) => ({ id, name })) });
    case 'POST projects':
      if (found.projects.some((one) => one.name === body['name']))
        return refused(response, 409, `there is a project "${String(body['name'])}" already`);
      return done(response, addProject(found, String(body['name'])));
    case 'GET invitations':
      return done(response, { invitations: found.invitations });
    case 'POST invitations': {
      if (found.personal) return refused(response, 409, 'a personal organization accepts no members');
      const role: Role = body['role'] === 'owner' ? 'owner' : 'member';
      const invitation = { id: randomUUID(), email: String(body['email']), role };
      found.invitations.push(invitation);
      return done(response, { org_id: id, ...invitation });
    }
    case 'DELETE invitations':
      found.invitations = found.invitations.filter((one) => one.id !== more);
      return done(response, { deleted: more });
    case 'GET credits':
      return done(response, {
        org_id: id,
        balance: '12.5',
        overdraft_limit: '5',
        overdraft_limit_source: 'global',
        enabled: true,
        ledger: found.ledger.slice(0, Number(url.searchParams.get('limit') ?? 50)),
      });
    case 'GET audit': {
      const from = Number(url.searchParams.get('cursor') ?? 0);
      // Small pages, so that a list is read in several.
      const to = from + Math.min(2, Number(url.searchParams.get('limit')));
      const next_cursor = to < found.audit.length ? String(to) : null;
      return done(response, { entries: found.audit.slice(from, to), next_cursor });
    }
    default:
      return refused(response, 404, 'no such path');
  }
}

function projectPath({ management, user, method, id, what, body, url, response }: Called): boolean {
  const owner = management.organizations.find(
    (one) =>
      one.projects.some((project) => project.id === id) &&
      one.members.some((member) => member.id === user.id),
  );
  if (owner === undefined) return refused(response, 404, `project "${id}" not found`);
  if (method === 'DELETE') {
    owner.projects = owner.projects.filter((one) => one.id !== id);
    return done(response, { deleted: id });
  }
  if (what !== 'api-keys') return refused(response, 404, 'no such path');
  if (method === 'GET') {
    const all = url.searchParams.get('include_revoked') === 'true';
    const api_keys = management.keys
      .filter((one) => one.project_id === id && (all || one.revoked_at === null))
      .map(({ token: _token, ...key }) => key);
    return done(response, { api_keys });
  }
  const token = `rlp_${randomUUID()}`;
  const key: ApiKey = {
    id: randomUUID(),
    name: typeof body['name'] === 'string' ? body['name'] : 'default',
    project_id: id,
    key_prefix: token.slice(0, 8),
    created_at: new Date().toISOString(),
    revoked_at: null,
    last_used_at: null,
  };
  management.keys.unshift({ ...key, token });
  return done(response, { id: key.id, name: key.name, project_id: id, key_prefix: key.key_prefix, token });
}

function invitationPath({ management, user, id, response }: Called): boolean {
  const mine = management.organizations.flatMap((one) =>
    one.invitations.filter(({ email }) => email === user.email).map((invitation) => ({ one, invitation })),
  );
  if (id === '')
    return done(response, {
      invitations: mine.map(({ one, invitation }) => ({
        id: invitation.id,
        org_id: one.id,
        org_name: one.name,
        role: invitation.role,
      })),
    });
  const found = mine.find(({ invitation }) => invitation.id === id);
  if (found === undefined) return refused(response, 404, `invitation "${id}" not found`);
  const { one, invitation } = found;
  one.invitations = one.invitations.filter((other) => other !== invitation);
  one.members.push({ ...user, role: invitation.role });
  return done(response, { org_id: one.id, role: invitation.role });
}

function done(response: ServerResponse, body: unknown): true {
  send(response, 200, body);
  return true;
}

function refused(response: ServerResponse, status: number, error: string): true {
  send(response, status, { error });
  return true;
}
