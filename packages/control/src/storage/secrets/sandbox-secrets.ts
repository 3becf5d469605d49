/** The secrets of sandboxes, as the runner that replaces their placeholders needs them. */
import type { RunnerSecrets, SandboxSecret } from '@releap/contract';
import { queryAll, statement, type Queryable } from '@releap/database';
import type { Encryption } from '../../platform/encryption/encryption.ts';
import { type Known, readChanged } from './read-changed.ts';

/** Over `sandbox_secrets a`, `secrets x`, `sandbox_states s`. $1 sandboxes, $2 their runner, or null for any */
const FROM = `from sandbox_secrets a join secrets x on x.id = a.secret_id join sandbox_states s on s.id = a.sandbox_id
    where a.sandbox_id = any($1::uuid[]) and s.desired <> 'deleted'
      and ($2::uuid is null or (s.held and s.runner_id = $2))`;

const REVISIONS = statement<{ id: string; revision: string }>(
  'sandbox-secrets-revisions',
  `select a.sandbox_id as id,
          md5(string_agg(encode(a.placeholder_hash, 'hex') || x.id || x.updated_at, ' ' order by a.placeholder_hash)) as revision
     ${FROM} group by a.sandbox_id`,
);

interface Row {
  id: string;
  name: string;
  project_id: string;
  allowed_domains: string[];
  allow_http: boolean;
  key_id: string;
  envelope: Buffer;
  placeholders: string[];
}

const READ = statement<Row>(
  'sandbox-secrets-read',
  `select a.sandbox_id as id, x.name, x.project_id, x.allowed_domains, x.allow_http, x.key_id, x.envelope,
          array_agg(encode(a.placeholder_hash, 'hex')) as placeholders
     ${FROM} group by a.sandbox_id, x.id order by x.name, x.id`,
);

/**
 * Decrypted values of the sandboxes whose secrets have changed.
 * @param known sandboxes, with what the runner has of them
 * @param runnerId only sandboxes that are assigned to it; null for all
 * @throws KeysUnavailableError, SealBrokenError
 */
export async function readSandboxSecrets(
  on: Queryable,
  encryption: Encryption,
  known: readonly Known[],
  runnerId: string | null,
): Promise<RunnerSecrets> {
  const ids = known.map(({ id }) => id);
  const revisions = await queryAll(on, REVISIONS, [ids, runnerId]);
  const { changed, more } = await readChanged(known, revisions, async (id) => {
    const rows = await queryAll(on, READ, [[id], runnerId]);
    const content = await Promise.all(rows.map((row) => open(encryption, row)));
    return { content, bytes: content.reduce((sum, { value }) => sum + Buffer.byteLength(value), 0) };
  });
  return { sandboxes: changed.map(({ content, ...one }) => ({ ...one, secrets: content })), more };
}

/** $1 runner */
const RUNNER_DOMAINS = statement<{ domain: string }>(
  'runner-secret-domains',
  `select distinct d.domain
     from sandbox_secrets a join secrets x on x.id = a.secret_id join sandbox_states s on s.id = a.sandbox_id,
          jsonb_array_elements_text(x.allowed_domains) as d(domain)
    where s.desired <> 'deleted' and s.held and s.runner_id = $1`,
);

/** Where the secrets of the sandboxes of a runner may be sent. */
export async function readRunnerDomains(on: Queryable, runnerId: string): Promise<string[]> {
  return (await queryAll(on, RUNNER_DOMAINS, [runnerId])).map(({ domain }) => domain);
}

async function open(encryption: Encryption, row: Row): Promise<SandboxSecret> {
  const owner = { kind: 'secret', projectId: row.project_id, name: row.name } as const;
  const value = await encryption.decrypt({ keyId: row.key_id, envelope: row.envelope }, owner);
  return {
    name: row.name,
    value,
    allowed_domains: row.allowed_domains,
    ...(row.allow_http ? { allow_http: true } : {}),
    placeholders: row.placeholders,
  };
}
