/** SQL: which hosts have changes of a volume that are not committed, as far as is known. */

/** Statuses of sandboxes that may write to their volumes, or whose host is still committing what they wrote. */
export const MAY_WRITE = `('building', 'booting', 'running', 'stopping', 'pausing', 'deleting')`;

/** The host of this copy has changes, or sandboxes that may write. @param copy alias of `volume_copies` */
export function isInUse(copy: string): string {
  return `(${copy}.dirty_since is not null
    or exists (select 1 from volume_attachments w join sandbox_states u on u.id = w.sandbox_id
                where w.volume_id = ${copy}.volume_id and u.runner_id = ${copy}.runner_id and u.status in ${MAY_WRITE}))`;
}

/**
 * The copy's host may have changes that it had not committed when it was asked to. Hosts that are lost do not count: nothing is to be
 * waited for.
 * @param copy alias of `volume_copies` @param commit number of the request
 */
export function mayHaveChanges(copy: string, commit: string): string {
  return `${copy}.desired = 'present' and ${copy}.commit < ${commit} and ${isInUse(copy)}
    and exists (select 1 from runners h where h.id = ${copy}.runner_id and h.status <> 'lost')`;
}
