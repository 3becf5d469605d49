/** What people mean by the name of an organization or a project. */
import type { Organization, Project } from '@releap/contract';
import type { Account } from '../account/session.ts';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { printable } from '../terminal.ts';

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
  return findUnique(all, text, 'organization', 'rlp org ls');
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
  if (text !== undefined) return findUnique(all, text, 'project', 'rlp project ls');
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
function findUnique<T extends { id: string; name: string; org_name?: string }>(
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
