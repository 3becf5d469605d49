/** Key rotation: rewraps data keys of older key-encryption keys with the current one, a few rows at a time. */
import { queryAll, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { KeysUnavailableError } from './keys.ts';
import type { Encryption, Owner } from './encryption.ts';

interface OldRow {
  project_id: string;
  /** Of the secret, or the host. */
  name: string;
  /** Of the row: its id, or the host. */
  row: string;
  key_id: string;
  envelope: Buffer;
}

/** Compare-and-swap: a row that was rewritten meanwhile keeps the newer value. */
const TABLES = [
  {
    kind: 'secret' as const,
    old: statement<OldRow>(
      'rewrap-old-secrets',
      `select project_id, name, id::text as row, key_id, envelope from secrets
        where (key_id < $1 or key_id > $1) and id::text > $2 order by id::text limit $3`,
    ),
    write: statement<{ done: number }>(
      'rewrap-secret',
      `update secrets set key_id = $4, envelope = $5
        where id = $1::uuid and project_id = $2 and envelope = $3 returning 1 as done`,
    ),
  },
  {
    kind: 'registry-password' as const,
    old: statement<OldRow>(
      'rewrap-old-registries',
      `select project_id, host as name, project_id || ' ' || host as row, key_id, envelope from registry_credentials
        where (key_id < $1 or key_id > $1) and project_id || ' ' || host > $2 order by project_id || ' ' || host limit $3`,
    ),
    write: statement<{ done: number }>(
      'rewrap-registry',
      `update registry_credentials set key_id = $4, envelope = $5
        where project_id || ' ' || host = $1 and project_id = $2 and envelope = $3 returning 1 as done`,
    ),
  },
  {
    kind: 'service-key' as const,
    old: statement<OldRow>(
      'rewrap-old-service-keys',
      `select '' as project_id, name, name as row, key_id, envelope from service_keys
        where (key_id < $1 or key_id > $1) and name > $2 order by name limit $3`,
    ),
    write: statement<{ done: number }>(
      'rewrap-service-key',
      `update service_keys set key_id = $4, envelope = $5
        where name = $1 and $2::text = '' and envelope = $3 returning 1 as done`,
    ),
  },
];

const BATCH = 100;

export interface Rewrapped {
  done: number;
  /** Rows whose key is absent, or that cannot be unwrapped: they stay unchanged. */
  failed: number;
}

/** One pass over all rows. May be repeated, interrupted, and run by several servers. @throws KeysUnavailableError */
export async function rewrapAll(
  database: Database,
  encryption: Encryption,
  log: Logger,
  signal: AbortSignal,
): Promise<Rewrapped> {
  const current = await encryption.currentKey();
  const result: Rewrapped = { done: 0, failed: 0 };
  for (const { kind, old, write } of TABLES) {
    for (let after = ''; !signal.aborted; ) {
      const rows = await queryAll(database.pool, old, [current, after, BATCH]);
      for (const row of rows) {
        if (signal.aborted) return result;
        const owner: Owner = { kind, projectId: row.project_id, name: row.name };
        try {
          const { keyId, envelope } = await encryption.rewrap(
            { keyId: row.key_id, envelope: row.envelope },
            owner,
          );
          const written = await queryAll(database.pool, write, [
            row.row,
            row.project_id,
            row.envelope,
            keyId,
            envelope,
          ]);
          result.done += written.length;
        } catch (error) {
          result.failed++;
          log.error(
            { err: error, kind, project: row.project_id, name: row.name, key: row.key_id },
            'a value could not be rewrapped',
          );
          if (error instanceof KeysUnavailableError && (await isAway(encryption))) throw error;
        }
      }
      if (rows.length < BATCH) break;
      after = rows.at(-1)?.row ?? '';
    }
  }
  if (result.done > 0)
    log.info({ ...result, key: current }, 'encrypted values were rewrapped with the current key');
  return result;
}

/** All keys are unavailable, not only that of one row. */
async function isAway(encryption: Encryption): Promise<boolean> {
  return encryption.currentKey().then(
    () => false,
    () => true,
  );
}
