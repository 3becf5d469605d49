/** `rlp key`. */
import { findProject } from '../account/find-organization.ts';
import { openAccount } from '../account/session.ts';
import { EXIT } from '../exit-codes.ts';
import { age, showTable } from '../output/table.ts';
import { type Context, print, printJson, remark } from '../terminal.ts';
import { forEachNamed } from './each.ts';

export interface InProject {
  project?: string;
  org?: string;
}

export async function listKeys(
  context: Context,
  options: InProject & { revoked?: boolean },
): Promise<number> {
  const account = await openAccount(context);
  const project = await findProject(account, options.project, options.org);
  const { api_keys: keys } = await account.api.listApiKeys({
    params: { id: project.id },
    query: { include_revoked: options.revoked },
  });
  return showTable(context, keys, ['NAME', 'PREFIX', 'AGE', 'USED', 'ID', ''], (key) => [
    key.name,
    key.key_prefix,
    age(key.created_at),
    age(key.last_used_at ?? undefined),
    key.id,
    key.revoked_at === null ? '' : 'revoked',
  ]);
}

/** The key is shown only here. */
export async function mintKey(
  context: Context,
  name: string | undefined,
  options: InProject,
): Promise<number> {
  const account = await openAccount(context);
  const project = await findProject(account, options.project, options.org);
  const minted = await account.api.createApiKey({ params: { id: project.id }, body: { name } });
  if (context.options.json) printJson(context, minted);
  else print(context, minted.token);
  remark(context, `it is not shown again; rlp key rm ${minted.id} revokes it`);
  return EXIT.ok;
}

export async function revokeKeys(context: Context, ids: string[]): Promise<number> {
  const account = await openAccount(context);
  return await forEachNamed(context, 'key', ids, async (id) => {
    const { revoked } = await account.api.revokeApiKey({ params: { id } });
    return { id: revoked, status: 'revoked', printed: revoked };
  });
}
