import type { Database } from '@releap/database';
import type { EgressRoot } from '../../fleet/egress/egress-root.ts';
import type { Encryption } from '../../platform/encryption/encryption.ts';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { Logger } from 'pino';
import { KeysUnavailableError } from '../../platform/encryption/keys.ts';
import { createRewrap } from '../../platform/encryption/rewrap-task.ts';
import type { Module } from '../../platform/module.ts';
import { batchStep } from '../../platform/teardown/step.ts';
import { createPlaceholderCleanup } from './placeholder-cleanup.ts';
import { ENCRYPTED_TABLES } from './encrypted-tables.ts';
import { secretRoutes } from './routes.ts';
import { runnerSecretRoutes } from './runner-routes.ts';
import { createSecrets, eraseUnused } from './secrets.ts';

/** Interval at which deleted values that no sandbox uses are erased. */
const ERASE_MS = 5_000;
/** Delay between the end of a sandbox and the deletion of its placeholders. */
const CLEANUP_MS = 5_000;
const CLEANUP_MISSED_MS = 10 * 60_000;
const ROOT_RENEWAL_MS = 6 * 3_600_000;

export interface SecretsModuleOptions {
  database: Database;
  egressRoot: EgressRoot;
  encryption: Encryption;
  events: EventBus;
  log: Logger;
}

export function secretsModule({
  database,
  egressRoot,
  encryption,
  events,
  log,
}: SecretsModuleOptions): Module {
  const placeholders = createPlaceholderCleanup(events);
  return {
    name: 'secrets',
    routes(planes) {
      secretRoutes(planes, { database, secrets: createSecrets(database, encryption) });
      runnerSecretRoutes(planes, { database, egressRoot, encryption });
    },
    tasks: [
      {
        name: 'secret-erasure',
        everyMs: ERASE_MS,
        leased: true,
        run: async () => {
          await eraseUnused(database.pool);
        },
      },
      // Not leased: each server collects the sandboxes that it has ended itself.
      {
        name: 'placeholder-cleanup',
        everyMs: CLEANUP_MS,
        leased: false,
        run: () => placeholders.flush(database.pool),
      },
      {
        name: 'placeholder-cleanup-missed',
        everyMs: CLEANUP_MISSED_MS,
        leased: true,
        run: () => placeholders.deleteMissed(database.pool),
      },
      createRewrap({ database, encryption, log, tables: ENCRYPTED_TABLES }),
      {
        name: 'egress-root-renewal',
        everyMs: ROOT_RENEWAL_MS,
        leased: true,
        run: async () => {
          // Where no key is available nothing is intercepted; the key provider has logged it.
          const done = await egressRoot.renew().catch(ignoreUnavailableKeys);
          if (done === 'announced')
            log.info(
              'sandboxes trust the next egress root from now on; in 180 days it replaces the present one',
            );
          if (done === 'replaced')
            log.warn(
              'the egress root was replaced: sandboxes that have run for more than 180 days use secrets over TLS again after a stop and start',
            );
        },
      },
    ],
    teardown: [
      batchStep(database, {
        name: 'secrets',
        phase: 'erase',
        text: `with used as (
                 delete from sandbox_secrets where (sandbox_id, placeholder_hash) in (
                   select u.sandbox_id, u.placeholder_hash from sandbox_secrets u join secrets s on s.id = u.secret_id
                    where s.project_id = $1 limit $2)
                 returning 1),
               gone as (
                 delete from secrets where id in (
                   select id from secrets s where project_id = $1
                      and not exists (select 1 from sandbox_secrets u where u.secret_id = s.id) limit $2)
                 returning 1)
               select 1 from used union all select 1 from gone`,
      }),
    ],
  };
}

function ignoreUnavailableKeys(error: unknown): undefined {
  if (!(error instanceof KeysUnavailableError)) throw error;
}
