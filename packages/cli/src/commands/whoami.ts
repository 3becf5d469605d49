/** `rlp whoami`. */
import { openAccount } from '../account/session.ts';
import { EXIT } from '../exit-codes.ts';
import { type Context, print, printable, printJson } from '../terminal.ts';

export async function whoami(context: Context): Promise<number> {
  const account = await openAccount(context);
  const user = await account.api.getMe();
  const { project, keys } = account.session;
  const used = project === undefined ? undefined : keys?.[project];
  if (context.options.json)
    printJson(context, {
      url: account.url,
      user,
      project: used && project ? { id: project, name: used.name, org_id: used.org_id } : null,
    });
  else {
    const name = user.name === '' || user.name === user.email ? '' : ` (${printable(user.name)})`;
    print(context, `${printable(user.email || user.id)}${name} at ${account.url}`);
    print(context, used && project ? `project ${printable(used.name)} (${project})` : 'no project in use');
  }
  return EXIT.ok;
}
