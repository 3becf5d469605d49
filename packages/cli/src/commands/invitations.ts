/** `rlp invite`. */
import { findOrganization } from '../account/find-organization.ts';
import { openAccount } from '../account/session.ts';
import { usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { showTable } from '../output/table.ts';
import { type Context, print, printJson, remark, show } from '../terminal.ts';
import { forEachNamed } from './each.ts';

export async function createInvitation(
  context: Context,
  email: string,
  options: { org?: string; role?: string },
): Promise<number> {
  const { role } = options;
  if (role !== undefined && role !== 'owner' && role !== 'member')
    throw usageError(`--role must be owner or member, but was ${JSON.stringify(role)}`);
  const account = await openAccount(context);
  const org = await findOrganization(account, options.org);
  const invitation = await account.api.createInvitation({ params: { id: org.id }, body: { email, role } });
  if (context.options.json) printJson(context, invitation);
  else print(context, invitation.id);
  remark(context, 'no mail is sent: ask them to sign in with this address and to run rlp invite ls');
  return EXIT.ok;
}

/** Those for the caller; of an organization, those that it has made. */
export async function listInvitations(context: Context, options: { org?: string }): Promise<number> {
  const account = await openAccount(context);
  if (options.org === undefined) {
    const { invitations: mine } = await account.api.listInvitations();
    return showTable(context, mine, ['ORGANIZATION', 'ROLE', 'ID'], (one) => [
      one.org_name,
      one.role,
      one.id,
    ]);
  }
  const { id } = await findOrganization(account, options.org);
  const { invitations: made } = await account.api.listOrgInvitations({ params: { id } });
  return showTable(context, made, ['EMAIL', 'ROLE', 'ID'], (one) => [one.email, one.role, one.id]);
}

export async function accept(context: Context, id: string): Promise<number> {
  const account = await openAccount(context);
  const accepted = await account.api.acceptInvitation({ params: { id } });
  return show(context, accepted, () => accepted.org_id);
}

export async function removeInvitations(
  context: Context,
  ids: string[],
  options: { org?: string },
): Promise<number> {
  const account = await openAccount(context);
  const org = await findOrganization(account, options.org);
  return await forEachNamed(context, 'invitation', ids, async (id) => {
    await account.api.revokeInvitation({ params: { id: org.id, invitation_id: id } });
    return { id, status: 'taken back', printed: id };
  });
}
