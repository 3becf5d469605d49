/**
 * SQL: whether an object store that is not deleted has its credentials in this secret.
 * @param secret alias of the table `secrets`
 */
export function isStoreCredential(secret: string): string {
  return `exists (select 1 from object_stores store
    where store.project_id = ${secret}.project_id and store.deleted_at is null
      and ${secret}.name in (store.access_key_secret, store.secret_key_secret, store.session_token_secret))`;
}
