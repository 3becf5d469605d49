import { queryAll, statement } from '@releap/database';
import type { ControlContext } from '../../context.ts';
import type { Module } from '../../platform/module.ts';
import { batchStep } from '../../platform/teardown/step.ts';
import { compatPreviewRoutes } from './preview-routes.ts';
import { compatSandboxRoutes } from './sandbox-routes.ts';
import { compatSnapshotRoutes } from './snapshot-routes.ts';
import { unsupportedRoutes } from './unsupported-routes.ts';

/** Rows of creates that have failed, and of sandboxes that were purged. $1 rows */
const PURGE = statement<{ sandbox_id: string }>(
  'compat-purge',
  `delete from compat_sandboxes where sandbox_id in (
     select c.sandbox_id from compat_sandboxes c
      where c.created_at < now() - interval '1 hour' and not exists (select 1 from sandboxes s where s.id = c.sandbox_id)
      limit $1)
   returning sandbox_id`,
);
const PURGE_MS = 3_600_000;
const PURGE_ROWS = 1_000;

/** The compatibility facade: the API in the wire protocol of another service (docs/compatibility.md). */
export function compatModule(context: ControlContext): Module {
  const { billing, database, options } = context;
  return {
    name: 'compat',
    routes(planes) {
      compatSandboxRoutes(planes, {
        ...context,
        defaultSnapshot: options.compatSnapshot,
        requireCredits: (orgId) => billing.requireCredits(orgId),
      });
      compatPreviewRoutes(planes, context);
      compatSnapshotRoutes(planes, { ...context, publicUrl: options.publicUrl });
      unsupportedRoutes(planes);
    },
    tasks: [
      {
        name: 'compat-purge',
        everyMs: PURGE_MS,
        leased: true,
        async run(signal) {
          while (
            !signal.aborted &&
            (await queryAll(database.pool, PURGE, [PURGE_ROWS])).length === PURGE_ROWS
          );
        },
      },
    ],
    teardown: [
      batchStep(database, {
        name: 'compat',
        phase: 'erase',
        text: `delete from compat_sandboxes
                where sandbox_id in (select sandbox_id from compat_sandboxes where project_id = $1 limit $2) returning 1`,
      }),
    ],
  };
}
