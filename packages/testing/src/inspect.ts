/**
 * What the database holds of a sandbox, for tests of what no API shows. The one place in the tests that knows the private
 * columns: a test that needs another one adds it here.
 */
import assert from 'node:assert/strict';
import {
  queryAll,
  columns,
  SANDBOX_COLUMNS,
  type Database,
  type Environment,
  type SandboxRow,
} from '@releap/database';

export interface InspectedSandbox extends SandboxRow {
  env: Environment;
}

const SELECT = `select ${columns('s', SANDBOX_COLUMNS)}, coalesce(e.env, '{}') as env
   from sandboxes s left join sandbox_env e on e.sandbox_id = s.id`;
const BY_ID = { name: 'inspect-by-id', text: `${SELECT} where s.id = $1` };
const BY_JOB = { name: 'inspect-by-job', text: `${SELECT} where s.job_id = $1` };

/** @param of the sandbox's UUID, or the job that makes it */
export async function inspect(
  { pool }: Pick<Database, 'pool'>,
  of: { uuid: string } | { jobId: string },
): Promise<InspectedSandbox> {
  const [statement, key] = 'uuid' in of ? [BY_ID, of.uuid] : [BY_JOB, of.jobId];
  const [row] = await queryAll<InspectedSandbox>(pool, statement, [key]);
  assert.ok(row, `no sandbox ${key}`);
  return row;
}
