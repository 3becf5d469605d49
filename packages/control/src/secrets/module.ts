import type { ControlContext } from '../context.ts';
import { createRewrap } from '../encryption/rewrap-task.ts';
import type { Module } from '../module.ts';
import { statementStep } from '../teardown/step.ts';
import { secretRoutes } from './routes.ts';
import { createSecrets, eraseUnused } from './secrets.ts';

/** How often deleted values are erased that no sandbox uses any more. */
const ERASE_MS = 5_000;

export function secretsModule({ database, encryption, log }: ControlContext): Module {
  return {
    name: 'secrets',
    routes: (planes) => secretRoutes(planes, { database, secrets: createSecrets(database, encryption) }),
    tasks: [
      {
        name: 'secret-erasure',
        everyMs: ERASE_MS,
        leased: true,
        run: async () => {
          await eraseUnused(database.pool);
        },
      },
      createRewrap({ database, encryption, log }),
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
