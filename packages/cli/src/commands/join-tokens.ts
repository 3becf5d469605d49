/** `rlp host join-token` and its like: tokens with which further machines join as hosts. */
import type { JoinTokenCreated, JoinTokenRequest } from '@releap/contract/wire';
import { EXIT } from '../exit-codes.ts';
import { openOperator } from '../operator.ts';
import { shortTime, showTable } from '../output/table.ts';
import { parseCount, parseDuration } from '../parse/values.ts';
import { type Context, print, printJson, remark, show } from '../terminal.ts';

export interface JoinTokenOptions {
  expires?: string;
  uses?: string;
  name?: string;
}

/** Prints the token alone, for a shell. */
export async function createToken(context: Context, options: JoinTokenOptions): Promise<number> {
  const { expires, uses, name } = options;
  const created = await makeJoinToken(context, {
    ...(expires === undefined
      ? {}
      : { expires_in_s: Math.max(1, Math.round(parseDuration('--expires', expires) / 1000)) }),
    ...(uses === undefined ? {} : { uses: parseCount('--uses', uses) }),
    ...(name === undefined ? {} : { name }),
  });
  if (context.options.json) printJson(context, created);
  else print(context, created.token);
  remark(
    context,
    `hosts that may join with it: ${created.uses}, until ${created.expires_at}; rlp host join-token-revoke ${created.id} ends it`,
  );
  return EXIT.ok;
}

export function makeJoinToken(context: Context, request: JoinTokenRequest): Promise<JoinTokenCreated> {
  return openOperator(context).api.createJoinToken({ body: request });
}

export async function listTokens(context: Context): Promise<number> {
  const { join_tokens: tokens } = await openOperator(context).api.listJoinTokens({});
  return showTable(context, tokens, ['ID', 'NAME', 'STATUS', 'USES LEFT', 'CREATED', 'EXPIRES'], (one) => [
    one.id,
    one.name ?? '-',
    one.status.replace('_', ' '),
    `${one.uses_left} of ${one.uses}`,
    shortTime(one.created_at),
    shortTime(one.expires_at),
  ]);
}

export async function revokeToken(context: Context, id: string): Promise<number> {
  await openOperator(context).api.revokeJoinToken({ params: { id } });
  return show(context, { id, status: 'revoked' }, () => id);
}
