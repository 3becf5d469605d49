/** A project as handlers of both planes see it: authorized by an API key, or by membership of its organization. */
import type { Database, Queryable } from '@releap/database';
import type { Principal } from '../../platform/auth/authenticator.ts';
import type { Caller } from '../../platform/auth/caller.ts';
import { requireProject } from './access.ts';
import { writeAudit } from './audit.ts';

/** Writes in the same transaction as the change that it describes. */
export type Within = (on: Queryable) => Promise<void>;

export interface ProjectScope {
  id: string;
  /** The audit entry of a write; undefined for none. */
  audit(action: string, target: { kind: string; id: string }): Within | undefined;
}

/** Changes by API keys are recorded where operations are registered (key-audit.ts). */
export function scopeOfKey({ projectId }: Principal): ProjectScope {
  return { id: projectId, audit: () => undefined };
}

/** @throws 404 alike for what does not exist, is malformed, or is not the caller's */
export async function scopeOfMember(
  database: Database,
  caller: Caller,
  projectId: string,
): Promise<ProjectScope> {
  const { id, orgId } = await requireProject(database.pool, caller, projectId);
  return {
    id,
    audit: (action, target) => (on) =>
      writeAudit(on, { actor: caller, orgId, projectId: id, action, target }),
  };
}
