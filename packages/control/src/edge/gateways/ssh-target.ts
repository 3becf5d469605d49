import type { Database } from '@releap/database';
import type { Authenticator } from '../../platform/auth/authenticator.ts';
import { runningSandboxTarget } from './running-sandbox-target.ts';
import type { TargetResolver } from './target-resolver.ts';

/** SSH to a sandbox. The gateway opens commands and ports of it for the client. */
export const sshTarget = (database: Database, authenticator: Authenticator): TargetResolver =>
  runningSandboxTarget('ssh', { database, authenticator });
