/** `rlp credits`, and the operator's `rlp admin grant`. */
import { isUuid } from '@releap/contract/ids';
import { findOrganization } from '../account/find-organization.ts';
import { openAccount } from '../account/session.ts';
import { usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { openOperator } from '../operator.ts';
import { age, table } from '../output/table.ts';
import { parseCount } from '../parse/values.ts';
import { type Context, print, printJson, remark } from '../terminal.ts';

const ENTRIES = 20;

export async function showCredits(
  context: Context,
  org: string | undefined,
  options: { limit?: string },
): Promise<number> {
  const limit = options.limit === undefined ? ENTRIES : parseCount('--limit', options.limit);
  const account = await openAccount(context);
  const { id } = await findOrganization(account, org);
  const record = await account.api.getCredits({ params: { id }, query: { limit } });
  if (context.options.json) {
    printJson(context, record);
    return EXIT.ok;
  }
  print(context, `balance ${record.balance}`);
  print(
    context,
    record.enabled
      ? `sandboxes are deleted at -${record.overdraft_limit}`
      : 'credits are not enforced by this service',
  );
  if (record.ledger.length > 0) {
    const rows = record.ledger.map((entry) => [
      age(entry.created_at),
      entry.amount,
      entry.kind,
      entry.vm_id ?? '-',
      entry.note ?? '',
    ]);
    print(context, `\n${table(['AGE', 'AMOUNT', 'KIND', 'SANDBOX', 'NOTE'], rows)}`);
  }
  return EXIT.ok;
}

export interface GrantOptions {
  note?: string;
  adjustment?: boolean;
  once?: string;
}

/** An amount below 0 is an adjustment. */
export async function grant(
  context: Context,
  org: string,
  amount: string,
  options: GrantOptions,
): Promise<number> {
  if (!isUuid(org))
    throw usageError(
      `name the organization by its id, as rlp org ls shows it, but it was ${JSON.stringify(org)}`,
    );
  if (!/^-?\d{1,18}(\.\d{1,9})?$/.test(amount))
    throw usageError(
      `the amount must be a decimal number, as in 100 or 2.5, but was ${JSON.stringify(amount)}`,
    );
  if (options.once !== undefined && !/^[\x21-\x7e]{1,255}$/.test(options.once))
    throw usageError('--once must be 1 to 255 visible ASCII characters without blanks');
  const operator = openOperator(context);
  const answer = await operator.api.grantCredits(
    {
      params: { id: org },
      body: { amount, note: options.note, ...(options.adjustment ? { kind: 'adjustment' as const } : {}) },
    },
    options.once === undefined ? {} : { idempotencyKey: options.once },
  );
  if (context.options.json) printJson(context, answer);
  else print(context, answer.balance);
  remark(context, `is the balance of organization ${org} now`);
  return EXIT.ok;
}
