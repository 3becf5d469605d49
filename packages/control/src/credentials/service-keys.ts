/**
 * Random keys that all control servers of a deployment share, generated on first use. They are in the database, encrypted
 * with the key-encryption key where the server has one.
 */
import { randomBytes } from 'node:crypto';
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { Encryption, Owner } from '../encryption/encryption.ts';
import { KeysUnavailableError } from '../encryption/keys.ts';

export type ServiceKeyName = 'idempotency' | 'data-tokens' | 'egress-root' | 'preview-tokens';

export interface ServiceKeys {
  /** @throws KeysUnavailableError while the key-encryption key cannot be used */
  get(name: ServiceKeyName): Promise<string>;
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

const KEY_BYTES = 32;

export function serviceKeyOwner(name: string): Owner {
  return { kind: 'service-key', projectId: '', name };
}

export function createServiceKeys({
  database,
  encryption,
  seeds,
  makers,
  log,
}: ServiceKeysOptions): ServiceKeys {
  const known = new Map<ServiceKeyName, Promise<string>>();

  async function generate(name: ServiceKeyName): Promise<{ keyId: string | null; envelope: Buffer }> {
    const make = makers?.[name];
    if (make !== undefined && encryption === undefined)
      throw new KeysUnavailableError(`service key ${name} needs a server with key-encryption keys`);
    const value = (await make?.()) ?? seeds?.[name] ?? randomBytes(KEY_BYTES).toString('base64url');
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
    get(name) {
      const cached = known.get(name);
      if (cached !== undefined) return cached;
      const loading = load(name);
      known.set(name, loading);
      loading.catch(() => known.delete(name));
      return loading;
    },
  };
}
