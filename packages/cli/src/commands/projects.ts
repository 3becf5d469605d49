/** `rlp project`. */
import { hostname } from 'node:os';
import { hasStatus } from '@releap/sdk';
import { changeCredentials, type ProjectKey } from '../account/credentials.ts';
import {
  findOrganization,
  findProject,
  listOrganizations,
  listProjects as readProjects,
} from '../account/find-organization.ts';
import { type Account, openAccount } from '../account/session.ts';
import { CliError } from '../cli-error.ts';
import { connect } from '../connect.ts';
import { EXIT } from '../exit-codes.ts';
import { showTable } from '../output/table.ts';
import { type Context, printJson, remark, show } from '../terminal.ts';
import { forEachNamed } from './each.ts';

export interface InOrganization {
  org?: string;
}

export async function listProjects(context: Context, options: InOrganization): Promise<number> {
  const account = await openAccount(context);
  const orgs =
    options.org === undefined
      ? await listOrganizations(account)
      : [await findOrganization(account, options.org)];
  const all: { id: string; name: string; org_id: string; org_name: string; in_use: boolean }[] = [];
  for (const org of orgs)
    for (const { id, name } of await readProjects(account, org.id))
      all.push({ id, name, org_id: org.id, org_name: org.name, in_use: id === account.session.project });
  return showTable(context, all, ['NAME', 'ORGANIZATION', 'ID', ''], ({ name, org_name, id, in_use }) => [
    name,
    org_name,
    id,
    in_use ? 'in use' : '',
  ]);
}

export async function addProject(context: Context, name: string, options: InOrganization): Promise<number> {
  const account = await openAccount(context);
  const { id: orgId } = await findOrganization(account, options.org);
  const created = await account.api.createProject({ params: { id: orgId }, body: { name } });
  return show(context, created, () => created.id);
}

export async function removeProjects(
  context: Context,
  projects: string[],
  options: InOrganization,
): Promise<number> {
  const account = await openAccount(context);
  return await forEachNamed(context, 'project', projects, async (text) => {
    const { id } = await findProject(account, text, options.org);
    await account.api.deleteProject({ params: { id } });
    await changeCredentials(context.terminal.env, ({ services }) => {
      const session = services[account.url];
      delete session?.keys?.[id];
      if (session?.project === id) delete session.project;
    });
    return { id, status: 'deleted', printed: id };
  });
}

/** Creates a key for this machine, unless it has an active one, and makes commands on sandboxes use it. */
export async function useProject(context: Context, text: string, options: InOrganization): Promise<number> {
  const account = await openAccount(context);
  const { id, name, org_id } = await findProject(account, text, options.org);
  const known = account.session.keys?.[id];
  const key: ProjectKey =
    known !== undefined && (await works(context, account, known))
      ? { ...known, name }
      : await mint(account, { id, name, org_id });
  await changeCredentials(context.terminal.env, (credentials) => {
    const session = credentials.services[account.url];
    if (session === undefined) throw new CliError(`another process signed out of ${account.url} meanwhile`);
    session.keys = { ...session.keys, [id]: key };
    session.project = id;
    credentials.current = account.url;
  });
  const { RELEAP_API_KEY: apiKey } = context.terminal.env;
  if (apiKey) remark(context, 'RELEAP_API_KEY is set and wins: unset it to use the project');
  return show(context, { id, name, org_id, key_id: key.id }, () => id);
}

/** It may have been revoked elsewhere. */
async function works(context: Context, account: Account, { api_key: apiKey }: ProjectKey): Promise<boolean> {
  const api = connect({ url: account.url, credential: apiKey, signal: context.signal });
  try {
    await api.listSandboxes({ query: { limit: 1 } });
    return true;
  } catch (error) {
    if (hasStatus(error, 401)) return false;
    throw error;
  }
}

async function mint(
  account: Account,
  project: { id: string; name: string; org_id: string },
): Promise<ProjectKey> {
  const { id, token } = await account.api.createApiKey({
    params: { id: project.id },
    body: { name: `rlp on ${hostname()}`.slice(0, 100) },
  });
  return { id, api_key: token, name: project.name, org_id: project.org_id };
}

/** Commands on sandboxes go to the server of this machine again. */
export async function useNoProject(context: Context): Promise<number> {
  const account = await openAccount(context);
  await changeCredentials(context.terminal.env, ({ services }) => {
    delete services[account.url]?.project;
  });
  if (context.options.json) printJson(context, { id: null });
  return EXIT.ok;
}
