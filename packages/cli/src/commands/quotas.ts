/** `rlp org quotas`. */
import { findOrganization } from '../account/find-organization.ts';
import { openAccount } from '../account/session.ts';
import { EXIT } from '../exit-codes.ts';
import { table } from '../output/table.ts';
import { type Context, print, printJson } from '../terminal.ts';

export async function showQuotas(context: Context, org: string | undefined): Promise<number> {
  const account = await openAccount(context);
  const { id } = await findOrganization(account, org);
  const record = await account.api.getQuotas({ params: { id } });
  if (context.options.json) {
    printJson(context, record);
    return EXIT.ok;
  }
  const rows = record.quotas.map(({ resource, used, limit }) => [resource, String(used), String(limit)]);
  print(context, table(['RESOURCE', 'USED', 'QUOTA'], rows));
  return EXIT.ok;
}
