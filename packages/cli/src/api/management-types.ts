/** What is answered to signed-in users and operators, and about secrets, as far as it is used here. */
export type Role = 'owner' | 'member';
export interface AuthConfig {
  issuer: string;
  client_id: string;
  audience: string;
  scopes: string[];
}
export interface User {
  id: string;
  email: string;
  name: string;
}
export interface Organization {
  id: string;
  name: string;
  personal: boolean;
  role: Role;
}
export interface Member {
  user_id: string;
  email: string;
  name: string;
  role: Role;
}
export interface Invitation {
  id: string;
  org_id: string;
  email: string;
  role: Role;
}
export interface OrgInvitation {
  id: string;
  email: string;
  role: Role;
}
export interface MyInvitation {
  id: string;
  org_id: string;
  org_name: string;
  role: Role;
}
export interface Project {
  id: string;
  org_id: string;
  name: string;
}
export interface ApiKey {
  id: string;
  name: string;
  project_id: string;
  key_prefix: string;
  created_at: string;
  revoked_at: string | null;
  last_used_at: string | null;
}
export interface ApiKeyMinted {
  id: string;
  name: string;
  project_id: string;
  key_prefix: string;
  token: string;
}
export interface AuditEntry {
  id: string;
  created_at: string;
  actor: { kind: string; id: string | null; name: string | null };
  action: string;
  target: { kind: string; id: string };
  project_id: string | null;
  details: object;
  ip: string | null;
  user_agent: string | null;
  outcome: 'done' | 'refused';
}
export interface LedgerEntry {
  id: number;
  amount: string;
  kind: string;
  vm_id: string | null;
  note: string | null;
  created_at: string;
}
export interface CreditsRecord {
  org_id: string;
  balance: string;
  overdraft_limit: string;
  overdraft_limit_source: string;
  enabled: boolean;
  ledger: LedgerEntry[];
}
export interface GrantResponse {
  org_id: string;
  entry: LedgerEntry;
  balance: string;
}
export interface SecretRecord {
  name: string;
  allowed_domains: string[];
  description?: string;
  created_at: string;
  updated_at: string;
}
export interface RegistryRecord {
  host: string;
  kind: string;
  username: string;
  description?: string;
  updated_at: string;
}
