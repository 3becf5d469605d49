/** Attempts at requests with a key, as leased work. */
import { WorkTable } from '../work/work-table.ts';

/** An attempt at a request. The salt tells it from one of another server under the same key. */
export interface Attempt {
  /** Digest of the caller and the key. */
  id: Buffer;
  attempt: number;
  salt: Buffer;
}

export const KEYS = new WorkTable<Attempt>({
  name: 'idempotency',
  table: 'idempotency_keys',
  key: { id: 'bytea' },
  fence: { attempt: 'integer', salt: 'bytea' },
  attempt: 'attempt',
  claimed: 'w.sealed is null and w.lease_until is not null',
});
