/** All tables of encrypted values. */
import { statement } from '@releap/database';
import { ENCRYPTED_SERVICE_KEYS } from '../../platform/credentials/service-keys.ts';
import type { EncryptedTable, OldRow } from '../../platform/encryption/rewrap.ts';
import { ENCRYPTED_STORES } from '../artifacts/region-stores.ts';
import { ENCRYPTED_REGISTRIES } from '../registries/registries.ts';

const ENCRYPTED_SECRETS: EncryptedTable = {
  kind: 'secret',
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
};

export const ENCRYPTED_TABLES = [
  ENCRYPTED_SECRETS,
  ENCRYPTED_REGISTRIES,
  ENCRYPTED_SERVICE_KEYS,
  ENCRYPTED_STORES,
];
