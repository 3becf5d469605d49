/** What people mean by the name of an organization or a project. */
import type { Organization, Project } from '@releap/contract';
import { findByName } from '@releap/sdk';
import { usageError } from '../cli-error.ts';
import type { Account } from './session.ts';

/** Those that the user belongs to. */
export async function listOrganizations({ api }: Account): Promise<Organization[]> {
  return (await api.listOrgs()).organizations;
}

/** Those of one organization. */
export async function listProjects({ api }: Account, orgId: string): Promise<Pick<Project, 'id' | 'name'>[]> {
  return (await api.listProjects({ params: { id: orgId } })).projects;
}

/**
 * The organization of that id or name; without a text that of the project in use, else the user's own. Names need not
 * be unique: more than one match is an error that lists them.
 */
export async function findOrganization(account: Account, text: string | undefined): Promise<Organization> {
  const all = await listOrganizations(account);
  if (text === undefined) {
    const used = account.session.keys?.[account.session.project ?? '']?.org_id;
    const found = all.find(({ id }) => id === used) ?? all.find(({ personal }) => personal);
    if (found === undefined) throw usageError('say which organization, with --org');
    return found;
  }
  return findByName(all, text, 'organization');
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
    orgText === undefined ? await listOrganizations(account) : [await findOrganization(account, orgText)];
  const all: (Project & { org_name: string })[] = [];
  for (const { id, name } of orgs)
    for (const project of await listProjects(account, id))
      all.push({ id: project.id, name: project.name, org_id: id, org_name: name });
  if (text !== undefined) return findByName(all, text, 'project');
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
