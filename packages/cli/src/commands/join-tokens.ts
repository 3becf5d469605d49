/** `rlp host join-token` and its like: tokens with which further machines join as hosts. */
import type { JoinTokenCreated, JoinTokenRecord, JoinTokenRequest } from '@releap/contract/wire';
import { formatJoinToken } from '@releap/contract/join-token';
import { EXIT } from '../exit-codes.ts';
import { openOperator } from '../operator.ts';
import { placeToJoin } from './join-place.ts';
import { shortTime, showTable } from '../output/table.ts';
import { parseCount, parseDuration } from '../parse/values.ts';
import { type Context, print, printJson, remark, show } from '../terminal.ts';

export interface JoinTokenOptions {
  expires?: string;
  uses?: string;
  name?: string;
  controlUrl?: string;
}

/** Prints the token alone, for a shell: the secret with what a machine must know to use it. */
export async function createToken(context: Context, options: JoinTokenOptions): Promise<number> {
  const { expires, uses, name } = options;
  const place = await placeToJoin(context, options.controlUrl);
  const created = await makeJoinToken(context, {
    ...(expires === undefined
      ? {}
      : { expires_in_s: Math.max(1, Math.round(parseDuration('--expires', expires) / 1000)) }),
    ...(uses === undefined ? {} : { uses: parseCount('--uses', uses) }),
    ...(name === undefined ? {} : { name }),
  });
  const token = formatJoinToken({ ...place, secret: created.token });
  if (context.options.json) printJson(context, { ...created, token, control_url: place.controlUrl });
  else print(context, token);
  remark(
    context,
    `on each new host: npm start -- join TOKEN, which connects to ${place.controlUrl}. Hosts that may join with it: ${created.uses}, ` +
      `until ${created.expires_at}; rlp host join-token-revoke ${created.id} ends it`,
  );
  return EXIT.ok;
}

export function makeJoinToken(context: Context, request: JoinTokenRequest): Promise<JoinTokenCreated> {
  return openOperator(context).api.createJoinToken({ body: request });
}

export async function listTokens(context: Context): Promise<number> {
  const { join_tokens: tokens } = await openOperator(context).api.listJoinTokens({});
  const heads = ['ID', 'NAME', 'STATUS', 'USES LEFT', 'CREATED', 'EXPIRES', 'HOSTS'];
  return showTable(context, tokens, heads, (one) => [
    one.id,
    one.name ?? '-',
    one.status.replace('_', ' '),
    `${one.uses_left} of ${one.uses}`,
    shortTime(one.created_at),
    shortTime(one.expires_at),
    hostsText(one),
  ]);
}

const HOSTS_SHOWN = 3;

/** `rack-1, rack-2, 7d0c1a5e, 4 more`. The beginning of an id stands for a host without a name. */
function hostsText({ hosts, host_count: count }: JoinTokenRecord): string {
  const shown = hosts.slice(0, HOSTS_SHOWN).map(({ id, name }) => name ?? id.slice(0, 8));
  if (count > shown.length) shown.push(`${count - shown.length} more`);
  return shown.join(', ') || '-';
}

export async function revokeToken(context: Context, id: string): Promise<number> {
  await openOperator(context).api.revokeJoinToken({ params: { id } });
  return show(context, { id, status: 'revoked' }, () => id);
}
