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
  Role,
  User,
} from '@releap/contract';

/** One that an organization has made. */
export type OrgInvitation = OrgInvitationList['invitations'][number];
/** One for the caller. */
export type MyInvitation = MyInvitationList['invitations'][number];

/** A secret without its value. */
export interface SecretRecord {
  name: string;
  allowed_domains: string[];
  description?: string;
  created_at: string;
  updated_at: string;
}

/** Credentials for a registry without the password. */
export interface RegistryRecord {
  host: string;
  kind: string;
  username: string;
  description?: string;
  updated_at: string;
}
