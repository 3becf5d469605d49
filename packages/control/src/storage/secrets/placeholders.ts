/**
 * Placeholders represent secrets inside sandboxes. A sandbox has one placeholder a secret, in its environment, for its
 * whole life: stops, pauses and resumes do not change it. Beside the environment only its hash is stored. It is valid
 * only for its sandbox, so a leaked one is useless elsewhere.
 */
import { badRequest, newToken, quote, tokenDigest } from '@releap/contract';
import { queryAll, statement, type Queryable } from '@releap/database';

/** Generated placeholders that are not written yet. */
export interface Minted {
  /** Their variables of the environment. */
  env: Record<string, string>;
  /** For `jsonb_to_recordset`, as `ATTACH` reads it. */
  rows: { secret_id: string; name: string; hash: string }[];
}

const FIND = statement<{ id: string; name: string }>(
  'secrets-by-name',
  `select id, name from secrets where project_id = $1 and name = any($2::text[]) and deleted_at is null`,
);

const OF_SANDBOX = statement<{ id: string; name: string }>(
  'secrets-of-sandbox',
  `select distinct secret_id as id, name from sandbox_secrets where sandbox_id = $1 and not inherited`,
);

/** $1 sandbox, $2 rows */
const ATTACH = statement(
  'secrets-attach',
  `insert into sandbox_secrets (sandbox_id, placeholder_hash, secret_id, name)
   select $1::uuid, decode(t.hash, 'hex'), t.secret_id, t.name
     from jsonb_to_recordset($2::jsonb) as t(secret_id uuid, name text, hash text)`,
);

/** $1 the new sandbox, $2 its source */
const INHERIT = statement(
  'secrets-inherit',
  `insert into sandbox_secrets (sandbox_id, placeholder_hash, secret_id, name, inherited)
   select $1::uuid, placeholder_hash, secret_id, name, true from sandbox_secrets where sandbox_id = $2
   on conflict do nothing`,
);

/**
 * New placeholders for the project's secrets of these names, to be written with their sandbox (`insertSandbox`).
 * @throws 400 naming one that the project does not have
 */
export async function mintByName(
  on: Queryable,
  projectId: string,
  names: readonly string[],
): Promise<Minted> {
  if (names.length === 0) return mint([]);
  const found = await queryAll(on, FIND, [projectId, names]);
  const known = new Set(found.map((secret) => secret.name));
  const unknown = names.find((name) => !known.has(name));
  if (unknown !== undefined)
    throw badRequest(
      `secrets: the project has no secret ${quote(unknown)}: create it first with PUT /secrets/${unknown}`,
    );
  return mint(found);
}

/**
 * Gives a fork, or a sandbox that is restored from a full snapshot, the secrets of its source under its own
 * placeholders. Those of the source stay valid in it, because its memory holds them. Call it in the transaction
 * that inserts the new sandbox, before or after its row.
 * @param ids.from may be deleted already
 * @param ids.except names of variables to leave out
 * @returns variables that override the source's environment
 */
export async function copySecrets(
  on: Queryable,
  { from, to, except = [] }: { from: string; to: string; except?: readonly string[] },
): Promise<Record<string, string>> {
  const attached = await queryAll(on, OF_SANDBOX, [from]);
  if (attached.length === 0) return {};
  const minted = mint(attached.filter(({ name }) => !except.includes(name)));
  await queryAll(on, ATTACH, [to, JSON.stringify(minted.rows)]);
  await queryAll(on, INHERIT, [to, from]);
  return minted.env;
}

function mint(secrets: readonly { id: string; name: string }[]): Minted {
  const made = secrets.map((secret) => ({ ...secret, token: newToken('secretPlaceholder') }));
  return {
    // From entries, because a name may be `__proto__`.
    env: Object.fromEntries(made.map(({ name, token }) => [name, token])),
    rows: made.map(({ id, name, token }) => ({
      secret_id: id,
      name,
      hash: tokenDigest(token).toString('hex'),
    })),
  };
}
