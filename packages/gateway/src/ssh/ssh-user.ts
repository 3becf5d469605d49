import { tokenKind } from '@releap/contract';

/** What a user name says: `<sandbox id>` or `<sandbox id>#<API key or access token>`. */
export interface SshUser {
  /** From the client: region-tagged or a bare UUID. */
  sandbox: string;
  /** Undefined without a `#`: the credential is the password. */
  token: string | undefined;
}

const SANDBOX_MAX_CHARS = 128;

/** Parses a user name; null when no sandbox can be meant. */
export function parseSshUser(name: string): SshUser | null {
  const at = name.indexOf('#');
  const sandbox = at < 0 ? name : name.slice(0, at);
  if (sandbox === '' || sandbox.length > SANDBOX_MAX_CHARS) return null;
  return { sandbox, token: at < 0 ? undefined : name.slice(at + 1) };
}

/** Whether the control plane has to be asked: other text cannot be a credential for a sandbox. */
export function mayBeCredential(token: string): boolean {
  const kind = tokenKind(token);
  return kind === 'apiKey' || kind === 'sandbox';
}
