/**
 * SQL: whether a sandbox that may still run has a store mounted with the credentials of this secret, and no newer secret of its name
 * has replaced it there.
 * @param secret alias of the table `secrets`
 */
export function isMountedCredential(secret: string): string {
  return `(exists (select 1 from object_stores store
       join object_store_mounts m on m.object_store_id = store.id join sandbox_states s on s.id = m.sandbox_id
      where store.project_id = ${secret}.project_id and store.deleted_at is null
        and ${secret}.name in (store.access_key_secret, store.secret_key_secret, store.session_token_secret)
        and s.desired <> 'deleted' and s.status <> 'deleted' and (s.persistent or s.status <> 'failed'))
    and not exists (select 1 from secrets newer
      where newer.project_id = ${secret}.project_id and newer.name = ${secret}.name
        and (newer.deleted_at is null or newer.deleted_at > ${secret}.deleted_at)))`;
}

/**
 * SQL: whether an object store that is not deleted has its credentials in this secret.
 * @param secret alias of the table `secrets`
 */
export function isStoreCredential(secret: string): string {
  return `exists (select 1 from object_stores store
    where store.project_id = ${secret}.project_id and store.deleted_at is null
      and ${secret}.name in (store.access_key_secret, store.secret_key_secret, store.session_token_secret))`;
}
