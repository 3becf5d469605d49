/** `rlp key`. */
import { openAccount } from '../account/session.ts';
import { createKey, findProject, keysOf, revokeKey } from '../api/management.ts';
import { EXIT } from '../exit-codes.ts';
import { age, table } from '../output/table.ts';
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
  await using account = await openAccount(context);
  const project = await findProject(account, options.project, options.org);
  const keys = await keysOf(account.http, project.id, options.revoked === true);
  if (context.options.json) printJson(context, keys);
  else
    print(
      context,
      table(
        ['NAME', 'BEGINS', 'AGE', 'USED', 'ID', ''],
        keys.map((key) => [
          key.name,
          key.key_prefix,
          age(key.created_at),
          age(key.last_used_at ?? undefined),
          key.id,
          key.revoked_at === null ? '' : 'revoked',
        ]),
      ),
    );
  return EXIT.ok;
}

/** The one time that the key is told. */
export async function mintKey(
  context: Context,
  name: string | undefined,
  options: InProject,
): Promise<number> {
  await using account = await openAccount(context);
  const project = await findProject(account, options.project, options.org);
  const minted = await createKey(account.http, project.id, name);
  if (context.options.json) printJson(context, minted);
  else print(context, minted.token);
  remark(context, `it is not shown again; rlp key rm ${minted.id} revokes it`);
  return EXIT.ok;
}

export async function revokeKeys(context: Context, ids: string[]): Promise<number> {
  await using account = await openAccount(context);
  return await forEachNamed(context, 'key', ids, async (id) => {
    const { revoked } = await revokeKey(account.http, id);
    return { id: revoked, status: 'revoked', printed: revoked };
  });
}
