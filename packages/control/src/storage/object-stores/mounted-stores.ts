/** The mounted stores of sandboxes with their credentials, as the proxy on their host needs them. */
import type { MountedStore, RunnerStores } from '@releap/contract';
import { queryAll, statement, type Queryable } from '@releap/database';
import type { Encryption } from '../../platform/encryption/encryption.ts';
import { type Known, readChanged } from '../secrets/read-changed.ts';

/**
 * A secret of the store by the name that its column has, or the last one of that name: what is mounted works on when its secret is
 * deleted, and only later mounts are refused.
 */
const secret = (alias: string, column: string): string =>
  `left join lateral (
     select x.id, x.updated_at, x.key_id, x.envelope from secrets x
      where x.project_id = o.project_id and x.name = o.${column}
      order by x.deleted_at desc nulls first limit 1) ${alias} on true`;
/** $1 sandboxes, $2 their runner, or null for any */
const FROM = `from object_store_mounts m
     join object_stores o on o.id = m.object_store_id and o.deleted_at is null
     join sandbox_states s on s.id = m.sandbox_id
     ${secret('a', 'access_key_secret')} ${secret('k', 'secret_key_secret')} ${secret('t', 'session_token_secret')}
    where m.sandbox_id = any($1::uuid[]) and s.desired <> 'deleted' and ($2::uuid is null or (s.held and s.runner_id = $2))`;

const REVISIONS = statement<{ id: string; revision: string }>(
  'mounted-stores-revisions',
  `select m.sandbox_id as id, md5(string_agg(concat_ws(' ', m.mount_path, m.guest_access_key, m.read_only, o.id, o.updated_at,
            a.id, a.updated_at, k.id, k.updated_at, t.id, t.updated_at), E'\\n' order by m.mount_path)) as revision
     ${FROM} group by m.sandbox_id`,
);

interface Row {
  id: string;
  project_id: string;
  name: string;
  guest_access_key: string;
  guest_secret_key: string;
  endpoint: string;
  region: string;
  path_style: boolean;
  bucket: string;
  prefix: string;
  read_only: boolean;
  access_key_secret: string;
  secret_key_secret: string;
  session_token_secret: string | null;
  a_key: string | null;
  a_envelope: Buffer | null;
  k_key: string | null;
  k_envelope: Buffer | null;
  t_key: string | null;
  t_envelope: Buffer | null;
}

const READ = statement<Row>(
  'mounted-stores-read',
  `select m.sandbox_id as id, o.project_id, o.name, m.guest_access_key, m.guest_secret_key, o.endpoint, o.region, o.path_style,
          o.bucket, o.prefix, m.read_only, o.access_key_secret, o.secret_key_secret, o.session_token_secret,
          a.key_id as a_key, a.envelope as a_envelope, k.key_id as k_key, k.envelope as k_envelope,
          t.key_id as t_key, t.envelope as t_envelope
     ${FROM} order by m.mount_path`,
);

/**
 * The stores of the sandboxes whose mounts or secrets have changed.
 * @param known sandboxes, with what the runner has of them
 * @param runnerId only sandboxes that are assigned to it; null for all
 * @throws KeysUnavailableError, SealBrokenError
 */
export async function readMountedStores(
  on: Queryable,
  encryption: Encryption,
  known: readonly Known[],
  runnerId: string | null,
): Promise<RunnerStores> {
  const ids = known.map(({ id }) => id);
  const revisions = await queryAll(on, REVISIONS, [ids, runnerId]);
  const { changed, more } = await readChanged(known, revisions, async (id) => {
    const rows = await queryAll(on, READ, [[id], runnerId]);
    const content = await Promise.all(rows.map((row) => open(encryption, row)));
    return { content, bytes: Buffer.byteLength(JSON.stringify(content)) };
  });
  return { sandboxes: changed.map(({ content, ...one }) => ({ ...one, stores: content })), more };
}

async function open(encryption: Encryption, row: Row): Promise<MountedStore> {
  const { guest_access_key, guest_secret_key, endpoint, region, path_style, bucket, prefix, read_only } = row;
  const store = {
    guest_access_key,
    guest_secret_key,
    endpoint,
    region,
    path_style,
    bucket,
    prefix,
    read_only,
  };
  const values: string[] = [];
  for (const [name, keyId, envelope] of [
    [row.access_key_secret, row.a_key, row.a_envelope],
    [row.secret_key_secret, row.k_key, row.k_envelope],
    [row.session_token_secret, row.t_key, row.t_envelope],
  ] as const) {
    if (name === null) continue;
    if (keyId === null || envelope === null)
      return { ...store, unusable: `the secret ${name} of object store ${row.name} was deleted` };
    const owner = { kind: 'secret', projectId: row.project_id, name } as const;
    // A line break at its end is of the file that it came from.
    const value = (await encryption.decrypt({ keyId, envelope }, owner)).trim();
    if (value === '' || /[^!-~]/.test(value))
      return { ...store, unusable: `the secret ${name} of object store ${row.name} is not a credential` };
    values.push(value);
  }
  const [access_key = '', secret_key = '', session_token] = values;
  return {
    ...store,
    credentials: { access_key, secret_key, ...(session_token !== undefined && { session_token }) },
  };
}
