/** Which blobs a runner may read: those that something assigned to it names. */
import { queryOne, statement, type Database } from '@releap/database';

/** $1 runner, $2 digest */
const NAMED = statement<{ named: boolean }>(
  'blob-named-for-runner',
  `select exists (
            select 1 from jobs where kind = 'build' and status = 'running' and runner_id = $1
               and payload -> 'root' -> 'context' ->> 'digest' = $2)
       or exists (
            select 1 from sandboxes where held and runner_id = $1
               and spec -> 'root' -> 'context' ->> 'digest' = $2) as named`,
);

export type MayRead = (runnerId: string, digest: string) => Promise<boolean>;

export function blobAccess({ pool }: Database): MayRead {
  return async (runnerId, digest) => (await queryOne(pool, NAMED, [runnerId, digest]))?.named === true;
}
