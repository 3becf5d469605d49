/** What is answered to signed-in users and operators, and about secrets, by the names that are used here. */
import type { MyInvitationList, OrgInvitationList } from '@releap/contract';

export type {
  ApiKey,
  ApiKeyMinted,
  AuditEntry,
  AuthConfig,
  CreditsRecord,
  GrantResponse,
  Invitation,
  LedgerEntry,
  Member,
  Organization,
  Project,
  RegistryRecord,
  Role,
  SecretRecord,
  User,
} from '@releap/contract';

/** One that an organization has made. */
export type OrgInvitation = OrgInvitationList['invitations'][number];
/** One for the caller. */
export type MyInvitation = MyInvitationList['invitations'][number];
