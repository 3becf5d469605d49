/** On which host a sandbox is, for what is read from there. */
import { sandboxNotFound, type SandboxStatus } from '@releap/contract';
import { type Database, queryOne, statement } from '@releap/database';
import { readSandboxId } from './change.ts';
import { REACHABLE } from './queries.ts';

export interface HostOfSandbox {
  id: string;
  status: SandboxStatus;
  region: string;
  runner_id: string | null;
  data_url: string | null;
  /** Of its host; null where that is not known. */
  capabilities: string[] | null;
}

const WHERE = statement<HostOfSandbox>(
  'sandbox-where',
  `select s.id, s.status, s.region, s.runner_id, r.data_url, r.capabilities
     from sandboxes s left join runners r on r.id = s.runner_id where s.id = $1 and ${REACHABLE('$2', '$3', 's')}`,
);

/** @throws 404 for an id that the project does not have */
export async function hostOf(database: Database, shownId: string, projectId: string): Promise<HostOfSandbox> {
  const { uuid, region } = readSandboxId(shownId);
  const row = await queryOne(database.pool, WHERE, [uuid, projectId, region]);
  if (row === undefined) throw sandboxNotFound(shownId);
  return row;
}
