/**
 * Random keys that all control servers of a deployment share, generated on first use. They are in the database, encrypted
 * with the key-encryption key where the server has one.
 */
import { randomBytes } from 'node:crypto';
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { Encryption, Owner } from '../encryption/encryption.ts';
import { KeysUnavailableError } from '../encryption/keys.ts';

export type ServiceKeyName = 'idempotency' | 'data-tokens' | 'egress-root' | 'preview-tokens' | 'dispatch';

export interface ServiceKeys {
  /**
   * @param maxAgeMs of what this server remembers: other servers may have changed it
   * @throws KeysUnavailableError while the key-encryption key cannot be used
   */
  get(name: ServiceKeyName, maxAgeMs?: number): Promise<string>;
  /**
   * Replaces a key, unless another server has replaced it meanwhile.
   * @param change undefined: it stays as it is
   * @returns whether it was replaced
   * @throws KeysUnavailableError
   */
  update(name: ServiceKeyName, change: (value: string) => Promise<string | undefined>): Promise<boolean>;
}

export interface ServiceKeysOptions {
  database: Database;
  /** Absent where the server has no key-encryption key. */
  encryption?: Encryption | undefined;
  /** Initial values for keys that do not exist yet, instead of random ones. */
  seeds?: Partial<Record<ServiceKeyName, string>>;
  /** Make keys that are not random bytes. They are only stored encrypted. */
  makers?: Partial<Record<ServiceKeyName, () => Promise<string>>>;
  log: Logger;
}

interface KeyRow {
  key_id: string | null;
  envelope: Buffer;
}

const READ = statement<KeyRow>(
  'service-key-read',
  'select key_id, envelope from service_keys where name = $1',
);
const INSERT = statement(
  'service-key-insert',
  'insert into service_keys (name, key_id, envelope) values ($1, $2, $3) on conflict (name) do nothing',
);
/** $4: the replaced envelope; another server may have replaced it already. */
const REPLACE = statement(
  'service-key-replace',
  'update service_keys set key_id = $2, envelope = $3, created_at = now() where name = $1 and envelope = $4',
);

/** As `REPLACE`, for a new value of the same key. */
const UPDATE = statement<{ name: string }>(
  'service-key-update',
  'update service_keys set key_id = $2, envelope = $3 where name = $1 and envelope = $4 returning name',
);

const KEY_BYTES = 32;

function serviceKeyOwner(name: string): Owner {
  return { kind: 'service-key', projectId: '', name };
}

export function createServiceKeys({
  database,
  encryption,
  seeds,
  makers,
  log,
}: ServiceKeysOptions): ServiceKeys {
  const known = new Map<ServiceKeyName, { value: Promise<string>; at: number }>();

  async function generate(name: ServiceKeyName): Promise<{ keyId: string | null; envelope: Buffer }> {
    const make = makers?.[name];
    if (make !== undefined && encryption === undefined)
      throw new KeysUnavailableError(`service key ${name} needs a server with key-encryption keys`);
    return seal(name, (await make?.()) ?? seeds?.[name] ?? randomBytes(KEY_BYTES).toString('base64url'));
  }

  async function seal(
    name: ServiceKeyName,
    value: string,
  ): Promise<{ keyId: string | null; envelope: Buffer }> {
    return encryption === undefined
      ? { keyId: null, envelope: Buffer.from(value, 'utf8') }
      : await encryption.encrypt(value, serviceKeyOwner(name));
  }

  async function open(name: ServiceKeyName, row: KeyRow): Promise<string> {
    if (row.key_id === null) return row.envelope.toString('utf8');
    if (encryption === undefined)
      throw new KeysUnavailableError(`service key ${name} is encrypted, and this server has no keys`);
    return encryption.decrypt({ keyId: row.key_id, envelope: row.envelope }, serviceKeyOwner(name));
  }

  async function load(name: ServiceKeyName): Promise<string> {
    for (;;) {
      const row = await queryOne(database.pool, READ, [name]);
      if (row === undefined) {
        const { keyId, envelope } = await generate(name);
        await queryAll(database.pool, INSERT, [name, keyId, envelope]);
        continue;
      }
      try {
        return await open(name, row);
      } catch (error) {
        // With all keys unavailable, this one may still be valid.
        if (encryption === undefined) throw error;
        await encryption.currentKey();
        log.error({ err: error, key: name }, 'a service key cannot be decrypted; replacing it');
        const { keyId, envelope } = await generate(name);
        await queryAll(database.pool, REPLACE, [name, keyId, envelope, row.envelope]);
      }
    }
  }

  return {
    get(name, maxAgeMs = Number.POSITIVE_INFINITY) {
      const cached = known.get(name);
      if (cached !== undefined && performance.now() - cached.at <= maxAgeMs) return cached.value;
      const loading = { value: load(name), at: performance.now() };
      known.set(name, loading);
      loading.value.catch(() => {
        if (known.get(name) === loading) known.delete(name);
      });
      return loading.value;
    },
    async update(name, change) {
      await load(name);
      const row = await queryOne(database.pool, READ, [name]);
      if (row === undefined) return false;
      const value = await change(await open(name, row));
      if (value === undefined) return false;
      const { keyId, envelope } = await seal(name, value);
      const replaced = await queryAll(database.pool, UPDATE, [name, keyId, envelope, row.envelope]);
      known.delete(name);
      return replaced.length > 0;
    },
  };
}
