/**
 * Random keys that all control servers of a deployment share, generated on first use. They are in the database, encrypted
 * with the key-encryption key where the server has one. A key that exists and cannot be read is never replaced: other
 * servers may read it, and tokens, certificates and recorded responses depend on it.
 */
import { randomBytes } from 'node:crypto';
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { SealBrokenError, type Encryption, type Owner } from '../encryption/encryption.ts';
import type { EncryptedTable, OldRow } from '../encryption/rewrap.ts';
import { KeysUnavailableError } from '../encryption/keys.ts';

export type ServiceKeyName =
  | 'idempotency'
  | 'data-tokens'
  | 'egress-root'
  | 'host-root'
  | 'preview-tokens'
  | 'dispatch';

export interface ServiceKeys {
  /**
   * At most `maxAgeMs` old. While it cannot be read again, the value that this server has read before stays in use.
   * @throws KeysUnavailableError when this server has never read it, and its key-encryption key cannot be used
   */
  get(name: ServiceKeyName): Promise<string>;
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
  /** Make keys that are not random bytes. They are only stored encrypted. */
  makers?: Partial<Record<ServiceKeyName, () => Promise<string>>>;
  /** After this time a key is read again, because another server may have changed it. Default: a minute. */
  maxAgeMs?: number;
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
/** $4: the envelope whose value was changed; another server may have changed it meanwhile. */
const UPDATE = statement<{ name: string }>(
  'service-key-update',
  'update service_keys set key_id = $2, envelope = $3 where name = $1 and envelope = $4 returning name',
);

export const ENCRYPTED_SERVICE_KEYS: EncryptedTable = {
  kind: 'service-key',
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
};

const KEY_BYTES = 32;
const MAX_AGE_MS = 60_000;

function serviceKeyOwner(name: string): Owner {
  return { kind: 'service-key', projectId: '', name };
}

export function createServiceKeys({
  database,
  encryption,
  makers,
  maxAgeMs = MAX_AGE_MS,
  log,
}: ServiceKeysOptions): ServiceKeys {
  const known = new Map<ServiceKeyName, { value: Promise<string>; at: number }>();
  /** The last value that was read of each key. */
  const lastRead = new Map<ServiceKeyName, string>();

  async function generate(name: ServiceKeyName): Promise<{ keyId: string | null; envelope: Buffer }> {
    const make = makers?.[name];
    if (make !== undefined && encryption === undefined)
      throw new KeysUnavailableError(`service key ${name} needs a server with key-encryption keys`);
    return seal(name, (await make?.()) ?? randomBytes(KEY_BYTES).toString('base64url'));
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
    try {
      return await encryption.decrypt({ keyId: row.key_id, envelope: row.envelope }, serviceKeyOwner(name));
    } catch (error) {
      if (!(error instanceof SealBrokenError)) throw error;
      throw new KeysUnavailableError(
        `service key ${name} is damaged (${error.message}), and is not replaced by the server: ` +
          'see "A service key that cannot be read" in docs/secrets.md',
        { cause: error },
      );
    }
  }

  async function load(name: ServiceKeyName): Promise<string> {
    for (;;) {
      const row = await queryOne(database.pool, READ, [name]);
      if (row !== undefined) return await open(name, row);
      const { keyId, envelope } = await generate(name);
      await queryAll(database.pool, INSERT, [name, keyId, envelope]);
    }
  }

  async function refresh(name: ServiceKeyName): Promise<string> {
    try {
      const value = await load(name);
      lastRead.set(name, value);
      return value;
    } catch (error) {
      const value = lastRead.get(name);
      if (value === undefined) throw error;
      log.error({ err: error, key: name }, 'a service key cannot be read again; its last value stays in use');
      return value;
    }
  }

  return {
    get(name) {
      const cached = known.get(name);
      if (cached !== undefined && performance.now() - cached.at <= maxAgeMs) return cached.value;
      const loading = { value: refresh(name), at: performance.now() };
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
