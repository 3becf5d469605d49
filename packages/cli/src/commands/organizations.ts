/** `rlp org`. */
import type { AuditEntry } from '@releap/contract';
import { findOrganization, listOrganizations as readOrganizations } from '../account/find-organization.ts';
import { openAccount } from '../account/session.ts';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { age, showTable } from '../output/table.ts';
import { parseCount } from '../parse/values.ts';
import { type Context, show } from '../terminal.ts';
import { forEachNamed } from './each.ts';

const AUDIT_PAGE = 200;
const AUDIT_ENTRIES = 50;

export async function listOrganizations(context: Context): Promise<number> {
  const account = await openAccount(context);
  const all = await readOrganizations(account);
  return showTable(context, all, ['NAME', 'ROLE', 'ID', ''], ({ name, role, id, personal }) => [
    name,
    role,
    id,
    personal ? 'personal' : '',
  ]);
}

export async function addOrganization(context: Context, name: string): Promise<number> {
  const account = await openAccount(context);
  const created = await account.api.createOrg({ body: { name } });
  return show(context, created, () => created.id);
}

export async function changeName(context: Context, org: string, name: string): Promise<number> {
  const account = await openAccount(context);
  const { id } = await findOrganization(account, org);
  const renamed = await account.api.updateOrg({ params: { id }, body: { name } });
  return show(context, renamed, () => renamed.id);
}

export async function removeOrganizations(context: Context, orgs: string[]): Promise<number> {
  const account = await openAccount(context);
  return await forEachNamed(context, 'org', orgs, async (text) => {
    const { id } = await findOrganization(account, text);
    await account.api.deleteOrg({ params: { id } });
    return { id, status: 'deleted', printed: id };
  });
}

export async function listMembers(context: Context, org: string | undefined): Promise<number> {
  const account = await openAccount(context);
  const { id } = await findOrganization(account, org);
  const { members: all } = await account.api.listMembers({ params: { id } });
  return showTable(context, all, ['EMAIL', 'NAME', 'ROLE', 'ID'], ({ email, name, role, user_id }) => [
    email,
    name,
    role,
    user_id,
  ]);
}

/** By id or e-mail address. */
export async function removeMembers(
  context: Context,
  users: string[],
  options: { org?: string },
): Promise<number> {
  const account = await openAccount(context);
  const org = await findOrganization(account, options.org);
  const { members: all } = await account.api.listMembers({ params: { id: org.id } });
  return await forEachNamed(context, 'member', users, async (text) => {
    const wanted = text.toLowerCase();
    const byId = all.filter(({ user_id }) => user_id === wanted);
    const [found, ...others] =
      byId.length > 0 ? byId : all.filter(({ email }) => email.toLowerCase() === wanted);
    if (found === undefined)
      throw new CliError(
        `no member has the address or id ${JSON.stringify(text)}: rlp org members lists them`,
        {
          exitCode: EXIT.notFound,
          status: 404,
        },
      );
    if (others.length > 0)
      throw usageError(`several members have the address ${JSON.stringify(text)}, use an id`);
    await account.api.removeMember({ params: { id: org.id, user_id: found.user_id } });
    return { user_id: found.user_id, status: 'removed', printed: found.user_id };
  });
}

export async function showAudit(
  context: Context,
  org: string | undefined,
  options: { limit?: string },
): Promise<number> {
  const limit = options.limit === undefined ? AUDIT_ENTRIES : parseCount('--limit', options.limit);
  const account = await openAccount(context);
  const { id } = await findOrganization(account, org);
  const entries: AuditEntry[] = [];
  let cursor: string | undefined;
  do {
    const page = await account.api.listAudit({
      params: { id },
      query: { limit: Math.min(limit - entries.length, AUDIT_PAGE), cursor },
    });
    entries.push(...page.entries);
    cursor = page.next_cursor ?? undefined;
  } while (cursor !== undefined && entries.length < limit);
  return showTable(context, entries, ['AGE', 'WHO', 'ACTION', 'TARGET', 'FROM', 'OUTCOME'], auditRow);
}

function auditRow({ created_at, actor, action, target, ip, outcome }: AuditEntry): string[] {
  const who = actor.name ?? actor.id ?? actor.kind;
  return [age(created_at), who, action, `${target.kind} ${target.id}`, ip ?? '-', outcome];
}
