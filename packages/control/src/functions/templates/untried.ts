/** Why a version was not tried yet, for the error of its callers. */
import { type ApiError, NotTriedYet, overloaded, quote } from '@releap/contract';
import { queryOne, statement, type Queryable, type SandboxRow } from '@releap/database';
import type { InstanceVersion } from '../instances/version.ts';

/** $1 version */
const PROBE = statement<Pick<SandboxRow, 'status'>>(
  'function-version-probe',
  `select s.status from function_instances i join sandboxes s on s.id = i.sandbox_id
    where i.version_id = $1 and i.purpose = 'probe' and s.status not in ('deleting', 'deleted')
    order by i.created_at desc limit 1`,
);

/** The error for calls of a version that is still tried. */
export async function untried(
  on: Queryable,
  { id, version, name, image_ref: image }: InstanceVersion,
): Promise<ApiError> {
  const status = (await queryOne(on, PROBE, [id]))?.status;
  const subject = `version ${version} of function ${quote(name)}`;
  if (status === 'pending')
    return overloaded(
      `${subject} has not been started yet: no host has had the capacity for its first instance`,
    );
  return new NotTriedYet(`${subject} has not been started yet: ${reasonOf(status, image)}`);
}

function reasonOf(status: SandboxRow['status'] | undefined, image: string): string {
  if (status === 'assigned' || status === 'building')
    return `the root file system of its image ${quote(image)} is being made, which the first use of an image on a host takes`;
  if (status === 'booting' || status === 'running')
    return 'its first instance is being started, and its handler does not listen yet';
  return 'its first instance is about to be started';
}
