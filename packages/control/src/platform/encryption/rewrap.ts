/** Key rotation: rewraps data keys of older key-encryption keys with the current one, a few rows at a time. */
import { queryAll, type Database, type Statement } from '@releap/database';
import type { Logger } from 'pino';
import { KeysUnavailableError } from './keys.ts';
import type { Encryption, Owner } from './encryption.ts';

export interface OldRow {
  project_id: string;
  /** Of the secret, or the host. */
  name: string;
  /** Of the row: its id, or the host. */
  row: string;
  key_id: string;
  envelope: Buffer;
}

/** A table of encrypted values, as its owner declares it. */
export interface EncryptedTable {
  kind: Owner['kind'];
  /** Rows of other keys, by `row`. $1 key, $2 the last row before, $3 most */
  old: Statement<OldRow>;
  /**
   * Compare-and-swap: a row that was rewritten meanwhile keeps the newer value. $1 row, $2 project, $3 envelope of before, $4 key,
   * $5 envelope
   */
  write: Statement<{ done: number }>;
}

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
  tables: readonly EncryptedTable[],
  log: Logger,
  signal: AbortSignal,
): Promise<Rewrapped> {
  const current = await encryption.currentKey();
  const result: Rewrapped = { done: 0, failed: 0 };
  for (const { kind, old, write } of tables) {
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
