import type { ControlContext } from '../context.ts';
import { KeysUnavailableError } from '../encryption/keys.ts';
import { createRewrap } from '../encryption/rewrap-task.ts';
import type { Module } from '../module.ts';
import { statementStep } from '../teardown/step.ts';
import { createPlaceholderCleanup } from './placeholder-cleanup.ts';
import { secretRoutes } from './routes.ts';
import { runnerSecretRoutes } from './runner-routes.ts';
import { createSecrets, eraseUnused } from './secrets.ts';

/** Interval at which deleted values that no sandbox uses are erased. */
const ERASE_MS = 5_000;
/** Delay between the end of a sandbox and the deletion of its placeholders. */
const CLEANUP_MS = 5_000;
const CLEANUP_MISSED_MS = 10 * 60_000;
const ROOT_RENEWAL_MS = 6 * 3_600_000;

export function secretsModule({ database, egressRoot, encryption, events, log }: ControlContext): Module {
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
      createRewrap({ database, encryption, log }),
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
      statementStep(database, {
        name: 'secrets',
        phase: 'erase',
        text: `with unused as (delete from sandbox_secrets where secret_id in (select id from secrets where project_id = $1)),
                    gone as (delete from secrets where project_id = $1)
               select 1 where false`,
      }),
    ],
  };
}

function ignoreUnavailableKeys(error: unknown): undefined {
  if (!(error instanceof KeysUnavailableError)) throw error;
}
