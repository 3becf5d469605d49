import type { Database } from '@releap/database';
import type { Authenticator } from '../auth/authenticator.ts';
import { runningSandboxTarget } from './running-sandbox-target.ts';
import type { TargetResolver } from './target-resolver.ts';

/** The toolbox of a sandbox: commands and files. */
export const toolboxTarget = (database: Database, authenticator: Authenticator): TargetResolver =>
  runningSandboxTarget('toolbox', database, authenticator);
