import type { Database } from '@releap/database';
import type { PreviewTokens } from './preview-tokens.ts';
import type { Module } from '../../platform/module.ts';
import { batchStep } from '../../platform/teardown/step.ts';
import { purgePreviewLinks } from './preview-links.ts';
import { endpointRoutes } from './routes.ts';

const PURGE_MS = 60_000;

export function endpointsModule(context: { database: Database; previewTokens: PreviewTokens }): Module {
  return {
    name: 'endpoints',
    routes: (planes) => endpointRoutes(planes, context),
    tasks: [
      {
        name: 'preview-links-purge',
        everyMs: PURGE_MS,
        leased: true,
        run: (signal) => purgePreviewLinks(context.database, signal),
      },
    ],
    teardown: [
      batchStep(context.database, {
        name: 'endpoints',
        phase: 'revoke',
        text: `delete from endpoints where id in (select id from endpoints where project_id = $1 limit $2) returning 1`,
      }),
    ],
  };
}
